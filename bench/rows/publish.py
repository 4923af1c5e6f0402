"""
Sending a task that is unique from its publish on, against sending a plain one.

Nobody takes the messages, and every task has a key of its own, so that each is sent: what is
measured is what a caller waits for. The peers lock on one Redis, the broker itself; ours on five
nodes beside it.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Any

from celery import Celery

from bench.measure import Operation, time_each
from bench.results import Result, ratios
from celery_redlock import RedlockTask
from celery_redlock.testing import LocalCluster

_WARM_UP = 50
_OURS, _PLAIN, _ONCE, _SINGLETON = "ours", "plain", "celery-once", "celery-singleton"


def publish(quick: bool) -> list[Result]:
    """Measure `apply_async` of our task, of a plain one and of two peers' in turns."""
    rounds, operations = (15, 60) if quick else (61, 100)
    medians: dict[str, list[float]] = {}
    with LocalCluster(5) as nodes, LocalCluster(1) as broker:
        app = _app(broker.urls[0], nodes.urls)
        sends = _sends(app)
        for send in sends.values():
            time_each(send, _WARM_UP)
        for number in range(rounds):
            # Each is first as often as any other.
            names = [*sends][number % len(sends) :] + [*sends][: number % len(sends)]
            for name in names:
                taken = time_each(sends[name], operations)
                medians.setdefault(name, []).append(statistics.median(taken))
            app.control.purge()
        app.close()
    return [
        _result(medians, _PLAIN),
        _result(medians, _ONCE),
        _result(medians, _SINGLETON),
    ]


def _app(broker: str, nodes: tuple[str, ...]) -> Celery:
    app = Celery("bench-publish", broker=broker, set_as_current=False)
    app.conf.update(
        redlock_nodes=list(nodes),
        task_ignore_result=True,
        ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": broker}},
        singleton_backend_url=broker,
        singleton_lock_expiry=3600,
    )
    return app


def _sends(app: Celery) -> dict[str, Operation]:
    from celery_once import QueueOnce
    from celery_singleton import Singleton

    def declare(name: str, **options: Any) -> Operation:
        task = app.task(_body, name=f"bench.{name}", shared=False, **options)
        numbers = itertools.count()
        return _sender(task.apply_async, numbers)

    ours = {"base": RedlockTask, "lock_mode": "until_executed", "lock_on_duplicate": "raise"}
    return {
        _PLAIN: declare(_PLAIN),
        _OURS: declare(_OURS, **ours),
        _ONCE: declare(_ONCE, base=QueueOnce),
        _SINGLETON: declare(_SINGLETON, base=Singleton, raise_on_duplicate=True),
    }


def _sender(send: Callable[..., object], numbers: itertools.count[int]) -> Operation:
    return lambda: send((next(numbers),))


def _body(number: int) -> None:
    """Run nowhere."""


def _result(medians: dict[str, list[float]], against: str) -> Result:
    pairs = list(zip(medians[_OURS], medians[against], strict=True))
    ours, theirs = (statistics.median(side) * 1e6 for side in zip(*pairs, strict=True))
    kind = "a plain task" if against == _PLAIN else f"a task of {against} (1 Redis)"
    return Result(
        row="publish",
        what=f"apply_async, p50: RedlockTask (until_executed, 5 nodes) / {kind}",
        goal=None,
        values=ratios(pairs),
        detail=f"ours {ours:.0f} µs, {against} {theirs:.0f} µs",
    )
