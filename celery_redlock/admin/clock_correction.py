"""
How much the kernel of this machine corrects the rate of its clock.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["clock_correction"]

#: Places of fields in the kernel's `struct timex`, in words of its `long`, and more words than it
#: has.
_FREQUENCY, _TICK, _WORDS = 2, 11, 64

#: Units: 2^-16 millionths, and microseconds for each of 100 ticks of a second.
_FREQUENCY_UNIT, _TICK_UNIT, _USUAL_TICK = 1e-6 / 65536, 1e-4, 10_000


def clock_correction() -> float | None:
    """
    Return by which part of itself the kernel makes this machine's clock faster; negative: slower.

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
