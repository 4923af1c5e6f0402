"""
Values of a message header, which any process with access to the queue may have written.

JSON can express infinity, numbers of a thousand digits, half of a surrogate pair, which no node
accepts, and texts of any length. These functions return None for a value that makes no sense.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The end of the year 9999, in seconds since the epoch; no datetime is later.
END_OF_TIME = 253_402_300_799.0
MAX_COUNT = 1_000_000


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values to write, which are those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


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
