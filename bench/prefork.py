"""
Real prefork workers that drain queues, one at a time.

The tasks of a round wait in a queue of their own before a worker begins to receive them, so that
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.results import Goal, Result, ratios
from bench.stopwatch import Stopwatch
from celery_redlock.testing import LocalCluster

_ROOT = Path(__file__).resolve().parents[1]
_TIMEOUT = 120.0
_PROCESSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """
    A worker of `bench.worker`.

    Attributes:
        name: its node name.
        log: its log.
    """

    name: str
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """
    Servers, and the app whose tasks workers run.

    Attributes:
        app: the app.
        directory: for files; it is gone in the end.
        stopwatch: notes when each task of a round runs.
        environment: of workers.
    """

    app: Any
    directory: Path
    stopwatch: Stopwatch
    environment: Mapping[str, str]
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextlib.contextmanager
    def worker(self, kind: str, **environment: str) -> Iterator[Worker]:
        """Run a worker, and give it once it can be told what to do."""
        worker = Worker(name=f"{kind}@bench", log=self.directory / f"{kind}.log")
        command = [
            *(sys.executable, "-m", "celery", "-A", "bench.worker", "worker"),
            *("--pool=prefork", f"--concurrency={_PROCESSES}"),
            *("--queues=idle", "--loglevel=WARNING"),
            *("--without-mingle", "--without-gossip", "--without-heartbeat"),
            f"--hostname={worker.name}",
        ]
        with worker.log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own command line
                command,
                cwd=_ROOT,
                env={**self.environment, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait_until_it_listens(worker)
            yield worker
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def rate(self, worker: Worker, task: str) -> float:
        """Let a worker run a queue full of one task, and return tasks per second."""
        app, stopwatch, queue = self.app, self.stopwatch, f"queue-{next(self._numbers)}"
        stopwatch.reset()
        with app.producer_pool.acquire(block=True) as producer:
            for place in range(len(stopwatch)):
                app.send_task(task, (place,), queue=queue, producer=producer, ignore_result=True)
        told = {"destination": [worker.name], "reply": True, "timeout": _TIMEOUT, "limit": 1}
        app.control.add_consumer(queue, **told)
        deadline = time.monotonic() + _TIMEOUT
        while not stopwatch.complete:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the worker did not run all of {task}; its log:\n{_tail(worker.log)}"
                )
            time.sleep(0.02)
        app.control.cancel_consumer(queue, **told)
        return stopwatch.rate()

    def _wait_until_it_listens(self, worker: Worker) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while not self.app.control.ping([worker.name], timeout=0.5, limit=1):
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the worker does not start; the end of its log:\n{_tail(worker.log)}"
                )


@contextlib.contextmanager
def staged(tasks: int) -> Iterator[Stage]:
    """Start five lock nodes and a broker for rounds of so many tasks."""
    with LocalCluster(5) as nodes, LocalCluster(1) as broker, tempfile.TemporaryDirectory() as tmp:
        directory = Path(tmp)
        times = directory / "times"
        stopwatch = Stopwatch.create(times, tasks)
        os.environ |= {
            "BENCH_BROKER": broker.urls[0],
            "BENCH_NODES": ",".join(nodes.urls),
            "BENCH_TIMES": str(times),
        }
        # Import after the environment is set: the app reads it.
        from bench.worker import app

        yield Stage(app=app, directory=directory, stopwatch=stopwatch, environment=dict(os.environ))
    app.close()


def by_turns(
    names: Sequence[str], rounds: int, rate: Callable[[str], float]
) -> dict[str, list[float]]:
    """Return the rates of each name, one for each round; one round before them is not counted."""
    rates: dict[str, list[float]] = {name: [rate(name)] for name in names}
    for number in range(rounds):
        for name in names if number % 2 else reversed(names):
            rates[name].append(rate(name))
    return {name: measured[1:] for name, measured in rates.items()}


def compared(
    row: str, what: str, ours: Sequence[float], others: Sequence[float], goal: float | None
) -> Result:
    """Return the result of a row that has at least this ratio of two rates as its goal."""
    middle = [sorted(side)[len(side) // 2] for side in (ours, others)]
    return Result(
        row=row,
        what=f"{what}, tasks per second, prefork",
        goal=None if goal is None else Goal(value=goal, limit="least"),
        values=ratios(list(zip(ours, others, strict=True))),
        detail=f"{middle[0]:.0f} and {middle[1]:.0f} tasks/s, {_PROCESSES} processes",
    )


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
