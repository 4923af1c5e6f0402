"""
The clock that bounds validity.
"""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):
    # After a laptop slept or a VM was suspended, its leases must have expired; CLOCK_MONOTONIC
    # does not advance meanwhile.
    _BOOTTIME = time.CLOCK_BOOTTIME

    def now() -> float:
        """Return seconds that pass also while the machine is suspended."""
        return time.clock_gettime(_BOOTTIME)

else:

    def now() -> float:
        """Return monotonic seconds; this platform has no clock that counts suspension."""
        return time.monotonic()


def wall_us() -> int:
    """Return the wall clock in microseconds."""
    return time.time_ns() // 1000
