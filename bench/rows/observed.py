"""
What metrics and traces cost a real prefork worker, in tasks per second.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from pathlib import Path

from bench.prefork import drain, running_worker, wait_until_it_listens
from bench.results import Goal, Result, ratios
from bench.stopwatch import Stopwatch
from celery_redlock.testing import LocalCluster

_TASK = "bench.locked"
_BARE, _METRICS, _TRACES = "nothing", "prometheus", "opentelemetry"


def observed(quick: bool) -> list[Result]:
    """Measure tasks that lock in workers with metrics, with traces and without, by turns."""
    rounds, tasks = (5, 400) if quick else (31, 1000)
    rates: dict[str, list[float]] = {_BARE: [], _METRICS: [], _TRACES: []}
    with (
        LocalCluster(5) as nodes,
        LocalCluster(1) as broker,
        tempfile.TemporaryDirectory() as tmp,
        contextlib.ExitStack() as workers,
    ):
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

        logs = {}
        for kind in rates:
            files = Path(tmp) / kind
            files.mkdir()
            own = {
                **environment,
                "BENCH_OBSERVED_BY": kind,
                # As docs tell workers with several processes.
                **({"PROMETHEUS_MULTIPROC_DIR": str(files)} if kind == _METRICS else {}),
            }
            log = Path(tmp) / f"{kind}.log"
            logs[kind] = workers.enter_context(running_worker(f"{kind}@bench", own, log))
        numbers = itertools.count()

        def rate(kind: str) -> float:
            queue = f"queue-{next(numbers)}"
            return drain(app, f"{kind}@bench", queue, _TASK, stopwatch, logs[kind])

        for kind, log in logs.items():
            wait_until_it_listens(app, f"{kind}@bench", log)
            rate(kind)
        for number in range(rounds):
            for kind in list(rates) if number % 2 else list(reversed(rates)):
                rates[kind].append(rate(kind))
    app.close()
    return [
        _result(
            "metrics of several processes",
            rates[_METRICS],
            rates[_BARE],
            Goal(value=0.98, limit="least"),
        ),
        _result("traces, written at once", rates[_TRACES], rates[_BARE], None),
    ]


def _result(what: str, ours: list[float], bare: list[float], goal: Goal | None) -> Result:
    middle = [sorted(side)[len(side) // 2] for side in (ours, bare)]
    return Result(
        row="observed",
        what=f"RedlockTask with {what} / without, tasks per second, prefork",
        goal=goal,
        values=ratios(list(zip(ours, bare, strict=True))),
        detail=f"{middle[0]:.0f} and {middle[1]:.0f} tasks/s",
    )
