"""A process whose wall clock is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import time_machine

from tests.support.tasks import Bench


@contextmanager
def clock_off_by(seconds: float, bench: Bench | None = None) -> Iterator[None]:
    """
    Let this process read a wall clock that is so far ahead; a bench's node keeps the right time.

    The clocks that pauses and leases are measured with stay as they are.
    """
    with time_machine.travel(time.time() + seconds, tick=True):
        if bench is not None:
            bench.node.skew = -seconds
        yield
    if bench is not None:
        bench.node.skew = 0.0
