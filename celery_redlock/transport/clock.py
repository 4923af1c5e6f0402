"""
The clock that bounds trust.
"""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):
    # A laptop that sleeps or a VM that is suspended must not believe in its leases afterwards, and
    # CLOCK_MONOTONIC stands still meanwhile.
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
