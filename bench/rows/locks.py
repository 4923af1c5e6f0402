"""
Taking and releasing a free lock on five nodes, against other ways to do so.

Every side makes what it makes for one use of a lock: a lock object where the library has one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import redis

from bench.baseline import Floor
from bench.measure import Operation, Rounds, compare, time_each
from bench.results import Goal, Result, in_microseconds, ratios
from celery_redlock import Redlock
from celery_redlock.testing import LocalCluster

_NODES = 5
_TTL = 30.0
_WARM_UP = 200


def one_node(quick: bool) -> list[Result]:
    """Five nodes against redis-py's lock on a single one."""
    with LocalCluster(_NODES) as nodes, LocalCluster(1) as one, _ours(nodes) as ours:
        client = redis.Redis.from_url(one.urls[0])

        def theirs() -> None:
            lock = client.lock("key", timeout=_TTL)
            if not lock.acquire():
                raise RuntimeError("redis-py did not get a free lock")
            lock.release()

        pairs = _compare(ours, theirs, quick)
        with Redlock(nodes.urls, ttl=_TTL) as redlock:

            def unawaited() -> None:
                redlock.acquire("key").release(wait=False)

            of_tasks = _compare(unawaited, theirs, quick)
        client.close()
    return [
        Result(
            row="one-node",
            what="acquire + release on 5 nodes, p50, / redis-py's Lock on 1 node",
            goal=Goal(value=1.1, limit="most"),
            values=ratios(pairs),
            detail=in_microseconds("ours", "redis-py", pairs),
        ),
        Result(
            row="one-node",
            what="acquire + unawaited release, as of a task, on 5 nodes, p50, "
            "/ redis-py's Lock on 1 node",
            goal=Goal(value=1.0, limit="most"),
            values=ratios(of_tasks),
            detail=in_microseconds("ours", "redis-py", of_tasks),
        ),
    ]


def floor(quick: bool) -> list[Result]:
    """Against a bare loop that does the same on the wire."""
    with LocalCluster(_NODES) as nodes, _ours(nodes) as ours:
        key, quarantine_ms = "redlock:floor", 60_000
        with Floor(nodes.urls, key, ttl_ms=int(_TTL * 1000), quarantine_ms=quarantine_ms) as bare:
            pairs = _compare(ours, bare.acquire_and_release, quick)
    return [
        Result(
            row="floor",
            what="acquire + release on 5 nodes, p50, "
            "/ a hand-written raw-socket loop with the same scripts",
            goal=Goal(value=1.1, limit="most"),
            values=ratios(pairs),
            detail=in_microseconds("ours", "the loop", pairs),
        )
    ]


def pottery(quick: bool) -> list[Result]:
    """Against pottery's Redlock."""
    from pottery import Redlock as PotteryLock

    with LocalCluster(_NODES) as nodes, _ours(nodes) as ours:
        masters = {redis.Redis.from_url(url) for url in nodes.urls}

        def theirs() -> None:
            lock = PotteryLock(key="key", masters=masters, auto_release_time=_TTL)
            if not lock.acquire():
                raise RuntimeError("pottery did not get a free lock")
            lock.release()

        pairs = _compare(ours, theirs, quick, operations=50)
        for master in masters:
            master.close()
    return [
        Result(
            row="pottery",
            what="pottery's Redlock / ours, on the same 5 nodes",
            goal=Goal(value=8.0, limit="least", unit="x"),
            values=[1 / ratio for ratio in ratios(pairs)],
            detail=in_microseconds("ours", "pottery", pairs),
        )
    ]


def redlock_py(quick: bool) -> list[Result]:
    """Against redlock-py."""
    from redlock import Redlock as RedlockPy

    with LocalCluster(_NODES) as nodes, _ours(nodes) as ours:
        servers = [redis.Redis.from_url(url) for url in nodes.urls]
        manager = RedlockPy(servers)

        def theirs() -> None:
            lock = manager.lock("key", int(_TTL * 1000))
            if not lock:
                raise RuntimeError("redlock-py did not get a free lock")
            manager.unlock(lock)

        pairs = _compare(ours, theirs, quick, operations=100)
        for server in servers:
            server.close()
    return [
        Result(
            row="redlock-py",
            what="redlock-py / ours, on the same 5 nodes",
            goal=Goal(value=4.0, limit="least", unit="x"),
            values=[1 / ratio for ratio in ratios(pairs)],
            detail=in_microseconds("ours", "redlock-py", pairs),
        )
    ]


@contextlib.contextmanager
def _ours(nodes: LocalCluster) -> Iterator[Operation]:
    with Redlock(nodes.urls, ttl=_TTL) as redlock:
        yield lambda: redlock.acquire("key").release()


def _compare(
    ours: Operation, theirs: Operation, quick: bool, *, operations: int = 300
) -> list[tuple[float, float]]:
    time_each(ours, _WARM_UP)
    time_each(theirs, _WARM_UP)
    return compare(ours, theirs, Rounds(count=10 if quick else 40, operations=operations))
