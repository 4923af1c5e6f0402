"""
A limit on all waits for locks in this process, for the time of a test.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["described", "limit_waits", "limited"]

_limit = math.inf


def limited(seconds: float) -> float:
    """Return how long to wait at most, where this many seconds are asked for."""
    return min(seconds, _limit)


def described(setting: str, seconds: float) -> str:
    """Return what ended a wait: a setting, or the limit of a test where that is shorter."""
    if _limit < seconds:
        return f"{_limit:g} s, the limit of this test (the fixture redlock_testing)"
    return f"{setting} = {seconds:g} s"


@contextmanager
def limit_waits(seconds: float) -> Iterator[None]:
    """Let nothing in this process wait for a lock for longer than this, inside of the block."""
    global _limit
    before, _limit = _limit, seconds
    try:
        yield
    finally:
        _limit = before
