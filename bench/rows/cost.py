"""
The cost of a lock in processor time, over a network with a delay, and as what is held grows.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import redis

from bench.measure import Operation, Rounds, compare, time_each
from bench.results import Goal, Result, in_microseconds, ratios
from celery_redlock import Redlock
from celery_redlock.protocol.commands import SOURCE, Command, Script, acquire, release
from celery_redlock.protocol.keys import Key
from celery_redlock.testing import LocalCluster

_NODES = 5
_TTL = 30.0
_TTL_MS = 30_000
_QUARANTINE_MS = 60_000
_BEFORE = (Path(__file__).parents[1] / "acquire_before.lua").read_text()
#: Seconds of delay in each direction.
_DELAY = 0.001


def server_cpu(quick: bool) -> list[Result]:
    """The processor time that a node needs, by its own count (`INFO cpu`)."""
    with LocalCluster(1) as nodes:
        client = nodes.client(0)
        batch = 200 if quick else 1000
        rounds = 10 if quick else 30

        def bare() -> None:
            pipe = client.pipeline(transaction=False)
            for number in range(batch):
                pipe.set(f"bare {number}", "owner", nx=True, px=_TTL_MS)
            pipe.execute()

        before = _acquires(client, _BEFORE, batch)
        now = _acquires(client, SOURCE[Script.ACQUIRE], batch)
        pair = _pairs(client, batch)
        samples = [
            [_node_seconds(client, side) / batch for side in (before, now, bare, pair)]
            for _ in range(rounds)
        ]
    microseconds = [sorted(column)[len(column) // 2] * 1e6 for column in zip(*samples, strict=True)]
    detail = "before {:.1f} µs, now {:.1f} µs, SET NX PX {:.1f} µs, acquire + release {:.1f} µs"
    return [
        Result(
            row="server-cpu",
            what="a node's time for an acquire / with the former check for restarts",
            goal=Goal(value=0.75, limit="most"),
            values=[after / earlier for earlier, after, _, _ in samples],
            detail=detail.format(*microseconds),
        ),
        Result(
            row="server-cpu",
            what="a node's time for an acquire / for a bare SET NX PX",
            goal=None,
            values=[after / least for _, after, least, _ in samples],
        ),
    ]


def client_cpu(quick: bool) -> list[Result]:
    """The processor time of this process for acquire and release on five nodes."""
    operations = 200 if quick else 500
    with LocalCluster(_NODES) as nodes, Redlock(nodes.urls, ttl=_TTL) as redlock:
        pair = _pair(redlock)
        time_each(pair, 200)
        values = []
        for _ in range(10 if quick else 30):
            begun = time.process_time()
            for _ in range(operations):
                pair()
            values.append((time.process_time() - begun) / operations * 1e6)
    return [
        Result(
            row="client-cpu",
            what="the client's time for acquire + release on 5 nodes",
            goal=Goal(value=220.0, limit="most", unit=" µs"),
            values=values,
        )
    ]


def delayed(quick: bool) -> list[Result]:
    """Five nodes against redis-py's lock on one, all behind proxies that delay every byte."""
    with (
        LocalCluster(_NODES, proxy=True) as nodes,
        LocalCluster(1, proxy=True) as one,
        Redlock(nodes.urls, ttl=_TTL) as redlock,
    ):
        for cluster in (nodes, one):
            for node in range(len(cluster)):
                cluster.delay(node, _DELAY)
        client = redis.Redis.from_url(one.urls[0])

        def theirs() -> None:
            lock = client.lock("key", timeout=_TTL)
            if not lock.acquire():
                raise RuntimeError("redis-py did not get a free lock")
            lock.release()

        ours = _pair(redlock)
        time_each(ours, 20)
        time_each(theirs, 20)
        rounds = Rounds(count=6 if quick else 20, operations=30)
        pairs = compare(ours, theirs, rounds)
        of_tasks = compare(lambda: redlock.acquire("key").release(wait=False), theirs, rounds)
        client.close()
    return [
        Result(
            row="delayed",
            what="acquire + release on 5 nodes 1 ms away / redis-py's Lock on 1 node as far away",
            goal=None,
            values=ratios(pairs),
            detail=in_microseconds("ours", "redis-py", pairs),
        ),
        Result(
            row="delayed",
            what="acquire + unawaited release, as of a task, on 5 nodes 1 ms away "
            "/ redis-py's Lock on 1 node as far away",
            goal=Goal(value=0.6, limit="most"),
            values=ratios(of_tasks),
            detail=in_microseconds("ours", "redis-py", of_tasks),
        ),
    ]


def growth(quick: bool) -> list[Result]:
    """The cost of one more lock as locks that are held, keys and nodes grow."""
    rounds = Rounds(count=6 if quick else 15, operations=100)
    results = []
    with LocalCluster(_NODES) as nodes, Redlock(nodes.urls, ttl=60.0) as redlock:
        for keys in (2, 8):
            names = [f"part {number}" for number in range(keys)]
            results.append(
                _grown(f"{keys} keys / 1 key", _pair(redlock, names), _pair(redlock), rounds)
            )
        with Redlock(nodes.urls, ttl=60.0) as holder:
            held = itertools.count()
            for total in (10, 1_000) if quick else (10, 1_000, 100_000):
                while (number := next(held)) < total:
                    holder.acquire(f"held {number}", ttl=60.0)
                with Redlock(nodes.urls, ttl=_TTL) as idle:
                    results.append(
                        _grown(f"{total} locks held / none", _pair(holder), _pair(idle), rounds)
                    )
    for count in (3, 7):
        with (
            LocalCluster(count) as several,
            LocalCluster(_NODES) as nodes,
            Redlock(several.urls, ttl=_TTL) as first,
            Redlock(nodes.urls, ttl=_TTL) as second,
        ):
            results.append(
                _grown(f"{count} nodes / {_NODES} nodes", _pair(first), _pair(second), rounds)
            )
    return results


def _grown(what: str, first: Operation, second: Operation, rounds: Rounds) -> Result:
    time_each(first, 50)
    time_each(second, 50)
    pairs = compare(first, second, rounds)
    return Result(
        row="growth",
        what=f"acquire + release, {what}",
        goal=None,
        values=ratios(pairs),
        detail=in_microseconds("first", "second", pairs),
    )


def _pair(redlock: Redlock, keys: list[str] | str = "key") -> Operation:
    return lambda: redlock.acquire(keys).release()


def _node_seconds(client: redis.Redis, run: Operation) -> float:
    """Return the processor seconds of a node while this runs."""
    begun = _used(client)
    run()
    used = _used(client) - begun
    client.flushdb()
    return used


def _used(client: redis.Redis) -> float:
    info = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def _acquires(client: redis.Redis, source: str, batch: int) -> Callable[[], None]:
    sha = client.script_load(source)

    def run() -> None:
        pipe = client.pipeline(transaction=False)
        for number in range(batch):
            _add(
                pipe,
                sha,
                acquire((Key.of("", f"key {number}"),), "owner", _TTL_MS, 1, _QUARANTINE_MS),
            )
        pipe.execute()

    return run


def _pairs(client: redis.Redis, batch: int) -> Callable[[], None]:
    acquires = _acquires(client, SOURCE[Script.ACQUIRE], batch)
    sha = client.script_load(SOURCE[Script.RELEASE])

    def run() -> None:
        acquires()
        pipe = client.pipeline(transaction=False)
        for number in range(batch):
            _add(pipe, sha, release((Key.of("", f"key {number}"),), "owner", 1))
        pipe.execute()

    return run


def _add(pipe: redis.client.Pipeline, sha: str, command: Command) -> None:
    pipe.evalsha(sha, len(command.keys), *command.keys, "nonce", *command.args)
