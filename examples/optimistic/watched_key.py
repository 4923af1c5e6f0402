"""
Optimistic locking of a Redis key: WATCH, MULTI, EXEC.

EXEC does nothing if a watched key has changed since WATCH. redis-py then raises `WatchError`, and
the caller starts again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import redis

from examples.optimistic.versioned_row import back_off


def deposit(
    client: redis.Redis, key: str, amount: int, think: Callable[[], object] = lambda: None
) -> int:
    """
    Add to a balance; return how often it had to be done again.

    Args:
        client: the server.
        key: where the balance is.
        amount: what to add.
        think: the work between reading and writing; it is done again as well.
    """
    with client.pipeline() as pipeline:
        for again in itertools.count():
            try:
                pipeline.watch(key)
                # While it watches, the pipeline answers at once.
                balance = int(pipeline.get(key) or 0)
                think()
                pipeline.multi()
                pipeline.set(key, balance + amount)
                pipeline.execute()
            except redis.WatchError:
                back_off(again)
            else:
                return again
    raise AssertionError("unreachable")
