"""
Tasks per second through a real prefork worker.

The tasks of a round wait in a queue of their own before the worker begins to receive them, so that
publishing is not measured. Each body notes the time at its own place in a shared file; from the
first to the last of them the worker was busy with nothing else.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

from bench.prefork import drain, running_worker, wait_until_it_listens
from bench.results import Goal, Result, ratios
from bench.stopwatch import Stopwatch
from celery_redlock.testing import LocalCluster

_WORKER = "worker@bench"
_LOCKED, _UNLOCKED, _PLAIN = "bench.locked", "bench.without_options", "bench.plain"


def throughput(quick: bool) -> list[Result]:
    """Measure tasks that lock, tasks that could, and plain tasks, in turns."""
    rounds, tasks = (5, 400) if quick else (21, 1000)
    rates: dict[str, list[float]] = {_LOCKED: [], _UNLOCKED: [], _PLAIN: []}
    with LocalCluster(5) as nodes, LocalCluster(1) as broker, tempfile.TemporaryDirectory() as tmp:
        times = Path(tmp) / "times"
        stopwatch = Stopwatch.create(times, tasks)
        environment = {
            **os.environ,
            "BENCH_BROKER": broker.urls[0],
            "BENCH_NODES": ",".join(nodes.urls),
            "BENCH_TIMES": str(times),
        }
        # Import after the environment is set: the app reads it.
        os.environ.update(environment)
        from bench.worker import app

        with running_worker(_WORKER, environment, Path(tmp) / "worker.log") as log:
            wait_until_it_listens(app, _WORKER, log)
            numbers = itertools.count()
            for name in rates:
                drain(app, _WORKER, f"warm-up-{next(numbers)}", name, stopwatch, log)
            for number in range(rounds):
                order = list(rates) if number % 2 else list(reversed(rates))
                for name in order:
                    queue = f"round-{next(numbers)}"
                    rates[name].append(drain(app, _WORKER, queue, name, stopwatch, log))
    app.close()
    return [
        _result("tasks", "RedlockTask", rates[_LOCKED], rates[_PLAIN], 0.75),
        _result("tasks", "RedlockTask without lock options", rates[_UNLOCKED], rates[_PLAIN], 0.98),
    ]


def _result(row: str, what: str, ours: list[float], plain: list[float], goal: float) -> Result:
    pairs = list(zip(ours, plain, strict=True))
    middle = [sorted(side)[len(side) // 2] for side in (ours, plain)]
    return Result(
        row=row,
        what=f"{what} / plain task, tasks per second, prefork",
        goal=Goal(value=goal, limit="least"),
        values=ratios(pairs),
        detail=f"{middle[0]:.0f} and {middle[1]:.0f} tasks/s",
    )
