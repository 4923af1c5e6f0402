"""
Single values of a header, which anybody may have written: read where they make sense, else None.

What JSON can spell is more than what makes sense: infinity, numbers of a thousand digits, half of a
surrogate pair, which no node can be sent, and texts of any length.
"""

from __future__ import annotations

from typing import Any

__all__ = ["END_OF_TIME", "read_count", "read_moment", "read_text"]

#: The end of the year 9999; no datetime is later.
END_OF_TIME = 253_402_300_799.0
#: Nothing that is counted in a header comes to more.
MAX_COUNT = 1_000_000


def read_text(value: Any, longest: int) -> str | None:
    """Return a text of at least one and at most `longest` characters."""
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value


def read_moment(value: Any) -> float | None:
    """Return a moment, in seconds since the epoch."""
    fits = type(value) in (int, float) and 0 <= value <= END_OF_TIME
    return float(value) if fits else None


def read_count(value: Any) -> int | None:
    """Return a whole number from 0 to a million."""
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None
