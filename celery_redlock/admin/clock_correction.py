"""
The kernel's correction of the rate of this machine's clock.
"""

from __future__ import annotations

import ctypes
import sys

#: Positions of fields in the kernel's `struct timex`, and more than its size, in C `long`s.
_FREQUENCY, _TICK, _WORDS = 2, 11, 64

#: `freq` counts 2^-16 millionths; `tick` is the microseconds of one of 100 ticks of a second.
_FREQUENCY_UNIT, _TICK_UNIT, _USUAL_TICK = 1e-6 / 65536, 1e-4, 10_000


def clock_correction() -> float | None:
    """
    Return the kernel's clock-rate correction as a fraction; positive: the clock is made faster.

    Daemons such as chrony do that: by some millionths to correct the oscillator, and by up to a
    tenth while they slew a clock that is wrong. Limit: this machine, at this moment, on Linux; None
    elsewhere, or where the kernel does not answer. It needs no rights.
    """
    if sys.platform != "linux":
        return None
    words = (ctypes.c_long * _WORDS)()
    try:
        if ctypes.CDLL(None).adjtimex(words) < 0:
            return None
    except (AttributeError, OSError):
        return None
    return words[_FREQUENCY] * _FREQUENCY_UNIT + (words[_TICK] - _USUAL_TICK) * _TICK_UNIT
