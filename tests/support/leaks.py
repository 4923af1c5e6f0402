"""Threads and descriptors that a test leaves behind."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.waiting import wait_until


def descriptors() -> int:
    gc.collect()  # what earlier tests have left
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def nothing_left() -> Iterator[None]:
    """Check that no thread and no descriptor is left of what happens meanwhile."""
    threads, before = set(threading.enumerate()), descriptors()
    yield
    # One whose work is done may not have ended yet.
    wait_until(lambda: set(threading.enumerate()) <= threads)
    assert descriptors() <= before
