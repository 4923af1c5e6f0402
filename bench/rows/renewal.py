"""
The watchdog: a thousand leases that are due together, and a hundred thousand that are kept.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from functools import partial

from bench.measure import Rounds, compare, time_each
from bench.results import Goal, Result, in_microseconds, ratios
from celery_redlock import Lease, Redlock
from celery_redlock.core.lease import holding_of
from celery_redlock.core.watchdog import Watch, Watchdog
from celery_redlock.testing import LocalCluster

_LEASES = 1000
_MAX_HOLD = 3600.0


def renewal(quick: bool) -> list[Result]:
    """Extend 1000 leases and 1 lease in turns."""
    with LocalCluster(5) as nodes, Redlock(nodes.urls, ttl=60.0) as redlock:
        time_each(lambda: redlock.acquire("warm-up").release(), 50)
        one = _round(redlock, ["alone"])
        many = _round(redlock, [f"key {number}" for number in range(_LEASES)])
        # A round of one is short; ten of them are timed for each of the many.
        pairs = [
            (of_many, of_ten / 10)
            for of_many, of_ten in compare(
                many,
                lambda: [one() for _ in range(10)],
                Rounds(count=10 if quick else 40, operations=1),
            )
        ]
    return [
        Result(
            row="renewal",
            what=f"one watchdog round that extends {_LEASES} leases / one that extends 1",
            goal=Goal(value=40.0, limit="most", unit="x"),
            values=ratios(pairs),
            detail=in_microseconds(f"{_LEASES} leases", "1 lease", pairs),
        )
    ]


def watchdog(quick: bool) -> list[Result]:
    """Keep many leases of 30 s; note what that takes, and how long `watch` waits meanwhile."""
    count, rounds, ttl = (5_000, 5, 30.0) if quick else (100_000, 15, 30.0)
    lost: list[Lease] = []
    shares, waits = [], []
    with LocalCluster(5) as nodes, Redlock(nodes.urls, ttl=ttl) as redlock:
        leases = []
        for number in range(count):
            leases.append(redlock.acquire(f"kept {number}", wait=5.0))
            redlock.watch(leases[-1], on_lost=lost.append)
        time.sleep(ttl / 3)  # until the extensions are spread as they will be
        for _ in range(rounds):
            of_round = []
            begun, used = time.monotonic(), time.process_time()
            for lease in random.sample(leases, 200):
                of_round += time_each(partial(redlock.watch, lease), 1)
                time.sleep(0.01)
            shares.append((time.process_time() - used) / (time.monotonic() - begun))
            waits.append(sorted(of_round)[int(len(of_round) * 0.99)] * 1000)
        if lost:
            raise RuntimeError(f"{len(lost)} of {count} watched leases were lost")
    return [
        Result(
            row="watchdog",
            what=f"processor time of this process while it keeps {count} leases of {ttl:g} s",
            goal=Goal(value=0.8, limit="most", unit=" cores"),
            values=shares,
        ),
        Result(
            row="watchdog",
            what=f"watch() while this process keeps {count} leases of {ttl:g} s, p99",
            goal=Goal(value=1.0, limit="most", unit=" ms"),
            values=waits,
        ),
    ]


class _IdleWatchdog(Watchdog):
    """Extends due leases when `extend_now` is called, without a thread."""

    def add(self, watch: Watch) -> None:
        self._watches[watch.lease] = watch
        self._push(self._losses, watch.lost_at, watch)

    def extend_now(self) -> None:
        for watch in self._watches.values():
            watch.extend_at = 0.0
        self._heap = [(0.0, number, watch) for number, watch in enumerate(self._watches.values())]
        while due := self._take_due():
            for transport, watches in due:
                self._extend_due(transport, watches)


def _round(redlock: Redlock, keys: list[str]) -> Callable[[], None]:
    """Acquire the locks; return a function that extends all of them once and checks that."""
    watchdog = _IdleWatchdog()
    leases = [redlock.acquire(key) for key in keys]
    for lease in leases:
        watchdog.add(Watch(holding_of(lease), _MAX_HOLD, math.inf))
    # The watchdog has connections of its own; the first round goes to those that are up by then.
    watchdog.extend_now()

    def extend() -> None:
        begun = time.monotonic()
        trusted = holding_of(leases[-1]).valid_until
        watchdog.extend_now()
        if holding_of(leases[-1]).valid_until <= trusted:
            raise RuntimeError(f"not extended in {time.monotonic() - begun:.3f} s")

    return extend
