"""
Keys with a limit or a rate: what a free slot costs, and how busy tasks keep slots.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Sequence

import redis

from bench.measure import Rounds, compare, time_each
from bench.results import Goal, Result, in_microseconds, ratios
from bench.rows.waiting import Body, worker
from celery_redlock import Limit, Redlock
from celery_redlock.core.limits import checked_rate
from celery_redlock.testing import LocalCluster

_NODES = 5
_TTL = 30.0
_LIMITS = (1, 8, 64, 128)
_WARM_UP = 200

#: As in `bench.waiting_worker`.
_BACKLOG_RATE = 10
_BACKLOG_PERIOD = checked_rate(f"{_BACKLOG_RATE}/s", "rate")[1] / 1000

#: As in `bench.waiting_worker`.
_SLOTS, _PER_SECOND = 5, 20

#: Seconds for which nodes keep a slot of that rate: 2 % more than the rate has.
_PERIOD = checked_rate(f"{_PER_SECOND}/s", "rate")[1] / 1000


def limit_cost(quick: bool) -> list[Result]:
    """Five nodes: a free slot against a free key, and against redis-py's lock on a single node."""
    rounds = Rounds(count=6 if quick else 20, operations=200)
    results = []
    with LocalCluster(_NODES) as nodes, LocalCluster(1) as one:
        client = redis.Redis.from_url(one.urls[0])
        with Redlock(nodes.urls, ttl=_TTL) as redlock:

            def ordinary() -> None:
                redlock.acquire("key").release()

            def theirs() -> None:
                lock = client.lock("key", timeout=_TTL)
                if not lock.acquire():
                    raise RuntimeError("redis-py did not get a free lock")
                lock.release()

            time_each(ordinary, _WARM_UP)
            time_each(theirs, _WARM_UP)
            for limit in _LIMITS:

                def slot(limit: int = limit) -> None:
                    redlock.acquire(Limit("key", limit)).release()

                time_each(slot, _WARM_UP)
                pairs = compare(slot, ordinary, rounds)
                results.append(
                    Result(
                        row="limit-cost",
                        what=f"acquire + release of one of {limit} slots, p50, / of a key",
                        goal=Goal(value=1.3, limit="most"),
                        values=ratios(pairs),
                        detail=in_microseconds("a slot", "a key", pairs),
                    )
                )
            pairs = compare(lambda: redlock.acquire(Limit("key", 8)).release(), theirs, rounds)
            results.append(
                Result(
                    row="limit-cost",
                    what="acquire + release of one of 8 slots, p50, / redis-py's Lock on 1 node",
                    goal=None,
                    values=ratios(pairs),
                    detail=in_microseconds("a slot", "redis-py", pairs),
                )
            )
        client.close()
    return results


def limits(quick: bool) -> list[Result]:
    """Measure how busy tasks keep five slots and a rate, in a worker of ten processes."""
    count = 60 if quick else 200
    with LocalCluster(_NODES) as nodes, worker(nodes, processes=10) as scene:
        limited = scene.run("bench.limited", count, 0.1)
        rated = scene.run("bench.rated", count, 0.01)
        requeues = scene.requeues("bench.rated")
    # Until the last period begins, more messages wait than may start.
    waits = (count / _PER_SECOND - 1) * _PERIOD
    started = sum(body.begun < rated[0].begun + waits for body in rated)
    used = started / (waits * _PER_SECOND)
    of_each = [*requeues.values(), *itertools.repeat(0, count - len(requeues))]
    return [
        Result(
            row="limits",
            what=f"{count} bodies of 0.1 s under lock_limit=5: share of the slots' time held",
            goal=Goal(value=0.95, limit="least"),
            values=[count * 0.1 / _SLOTS / (limited[-1].ended - limited[0].begun)],
        ),
        Result(
            row="limits",
            what="the same: bodies at once, at most",
            goal=Goal(value=_SLOTS, limit="most"),
            values=[float(_most_at_once(limited))],
        ),
        Result(
            row="limits",
            what=f"{count} bodies under lock_rate='20/s': share of the rate used while more wait",
            goal=Goal(value=0.95, limit="least"),
            values=[used],
            detail=f"the last began after {rated[-1].begun - rated[0].begun:.1f} s",
        ),
        Result(
            row="limits",
            what="the same: starts in any second, at most",
            goal=Goal(value=_PER_SECOND, limit="most"),
            values=[float(_most_in_a_second(rated))],
        ),
        Result(
            row="limits",
            what="the same: requeues of a task, median",
            goal=Goal(value=1, limit="most"),
            values=[statistics.median(of_each)],
            detail=f"requeues: tasks {dict(sorted(Counter(of_each).items()))}",
        ),
    ]


def backlog(quick: bool) -> list[Result]:
    """Measure waits behind a backlog while as many arrive as may start: in two workers of four."""
    waiting, seconds = (50, 10) if quick else (100, 20)
    sent: dict[int, float] = {}
    with LocalCluster(3) as nodes, worker(nodes, workers=2) as scene:
        begun = time.monotonic()
        sent |= dict.fromkeys(scene.send("bench.backlogged", waiting, 0.01), begun)
        for count in range(1, seconds * _BACKLOG_RATE + 1):
            time.sleep(max(0.0, begun + count / _BACKLOG_RATE - time.monotonic()))
            sent[scene.send("bench.backlogged", 1, 0.01)[0]] = time.monotonic()
        bodies = scene.bodies(range(min(sent), max(sent) + 1))
        requeues = scene.requeues("bench.backlogged")
    waits = sorted(body.begun - sent[body.number] for body in bodies)
    due = _due(sorted(sent.values()))
    all_due = max(at + wait for at, wait in due)
    late = sorted(body.begun - sent[body.number] for body in bodies if body.number >= waiting)
    return [
        Result(
            row="rate-backlog",
            what=f"{waiting} wait, then as many a second as lock_rate='{_BACKLOG_RATE}/s' lets "
            "start: wait, 99th percentile / of the wait that is due",
            goal=Goal(value=1.3, limit="most"),
            values=[waits[int(0.99 * len(waits))] / sorted(wait for _, wait in due)[-1]],
            detail=f"waits {waits[0]:.1f} to {waits[-1]:.1f} s, of new ones from {late[0]:.1f} s",
        ),
        Result(
            row="rate-backlog",
            what="the same: share of the rate that is used while more wait",
            goal=Goal(value=0.9, limit="least"),
            values=[(all_due - begun) / (bodies[-1].begun - begun)],
        ),
        Result(
            row="rate-backlog",
            what="the same: requeues of a task, median",
            goal=None,
            values=[statistics.median([*requeues.values()] or [0])],
            detail=f"requeues: tasks {dict(sorted(Counter(requeues.values()).items()))}",
        ),
    ]


def _due(sent: Sequence[float]) -> list[tuple[float, float]]:
    """Return of calls in the order in which they were sent when, and how long each has to wait."""
    free = [0.0] * _BACKLOG_RATE
    due = []
    for at in sent:
        starts = max(at, free.pop(0))
        free.append(starts + _BACKLOG_PERIOD)
        due.append((at, starts - at))
    return due


def _most_at_once(bodies: list[Body]) -> int:
    changes = [(body.begun, 1) for body in bodies] + [(body.ended, -1) for body in bodies]
    # A body that ends in the instant in which another begins is over.
    return max(itertools.accumulate(change for _, change in sorted(changes)))


def _most_in_a_second(bodies: list[Body]) -> int:
    starts = [body.begun for body in bodies]
    return max(sum(first <= start < first + 1 for start in starts) for first in starts)
