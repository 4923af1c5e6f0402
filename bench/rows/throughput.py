"""
Tasks per second through a real prefork worker.

The tasks of a round wait in a queue of their own before the worker begins to receive them, so that
publishing is not measured. Each body notes the time at its own place in a shared file; from the
first to the last of them the worker was busy with nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.results import Goal, Result, ratios
from bench.stopwatch import Stopwatch
from celery_redlock.testing import LocalCluster

_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT = 120.0
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

        with _worker(environment, Path(tmp) / "worker.log") as log:
            _wait_until_it_listens(app, log)
            numbers = itertools.count()
            for name in rates:
                _drain(app, f"warm-up-{next(numbers)}", name, stopwatch, log)
            for number in range(rounds):
                order = list(rates) if number % 2 else list(reversed(rates))
                for name in order:
                    queue = f"round-{next(numbers)}"
                    rates[name].append(_drain(app, queue, name, stopwatch, log))
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


@contextlib.contextmanager
def _worker(environment: dict[str, str], log: Path) -> Iterator[Path]:
    command = [
        *(sys.executable, "-m", "celery", "-A", "bench.worker", "worker"),
        *("--pool=prefork", "--concurrency=2", "--queues=idle", "--loglevel=WARNING"),
        *("--without-mingle", "--without-gossip", "--without-heartbeat"),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command line
            command, cwd=_ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_listens(app: Any, log: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not app.control.ping(timeout=0.5, limit=1):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the worker does not start; the end of its log:\n{_tail(log)}")


def _drain(app: Any, queue: str, task: str, stopwatch: Stopwatch, log: Path) -> float:
    """Let the worker run a queue full of one task, and return tasks per second."""
    stopwatch.reset()
    with app.producer_pool.acquire(block=True) as producer:
        for place in range(len(stopwatch)):
            app.send_task(task, (place,), queue=queue, producer=producer, ignore_result=True)
    app.control.add_consumer(queue, reply=True, timeout=_TIMEOUT, limit=1)
    deadline = time.monotonic() + _TIMEOUT
    while not stopwatch.complete:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the worker did not run all of {task}; its log:\n{_tail(log)}")
        time.sleep(0.02)
    app.control.cancel_consumer(queue, reply=True, timeout=_TIMEOUT, limit=1)
    return stopwatch.rate()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
