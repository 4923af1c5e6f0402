"""
A limit on all waits for locks in this process, for tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

_limit = math.inf


def limited(seconds: float) -> float:
    """Return a number of seconds to wait, or the limit if that is less."""
    return min(seconds, _limit)


def described(setting: str, seconds: float) -> str:
    """Return what ended a wait: a setting, or the limit of a test if that is less."""
    if _limit < seconds:
        return f"{_limit:g} s, the limit of this test (the fixture redlock_testing)"
    return f"{setting} = {seconds:g} s"


@contextmanager
def limit_waits(seconds: float) -> Iterator[None]:
    """Within the block, let nothing in this process wait for a lock for longer than this."""
    global _limit
    before, _limit = _limit, seconds
    try:
        yield
    finally:
        _limit = before
