"""
Names and replies of any length, shortened for messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

_MOST_CHARACTERS = 200
_MOST_NAMES = 5


def shortened(text: str, most: int = _MOST_CHARACTERS) -> str:
    """Return a text; if it has more than `most` characters, its beginning and its length."""
    if len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text):,} characters)"


def enumerated(names: Iterable[str], most: int = _MOST_NAMES) -> str:
    """Return names with commas; after the first `most`, only the number of the others."""
    iterator = iter(names)
    first = [shortened(name, _MOST_CHARACTERS // 2) for name in islice(iterator, most)]
    more = sum(1 for _ in iterator)
    return ", ".join(first) + (f", ... and {more:,} more" if more else "")


def readable(seconds: float) -> str:
    """Format seconds with three digits; from 1,000 on, as whole seconds."""
    return f"{seconds:.3g}" if abs(seconds) < 999.5 else f"{seconds:,.0f}"
