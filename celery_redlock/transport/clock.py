"""
The clock that bounds validity.
"""

from __future__ import annotations

import sys
import time

if hasattr(time, "CLOCK_BOOTTIME") or sys.platform == "darwin":
    # After a laptop slept or a VM was suspended, its leases must have expired. Linux's
    # CLOCK_MONOTONIC does not advance meanwhile; that of macOS does, and `time.monotonic` does not.
    _CLOCK = getattr(time, "CLOCK_BOOTTIME", None) or time.CLOCK_MONOTONIC

    def now() -> float:
        """Return seconds of a clock that also counts while the machine is suspended."""
        return time.clock_gettime(_CLOCK)

else:

    def now() -> float:
        """Return monotonic seconds; this platform has no clock that counts suspension."""
        return time.monotonic()


def wall_us() -> int:
    """Return the wall clock in microseconds."""
    return time.time_ns() // 1000
