"""
Tasks that wait for one key, in a real prefork worker of four processes.

Each scene runs as two users of the same nodes. One has all rights. The other has none to wait
queues and channels: nobody is woken, and `lock_wait` is what it was before releases woke anybody.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.results import Goal, Result
from celery_redlock.testing import LocalCluster

_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT = 300.0

_ASLEEP = (
    "allkeys allcommands resetchannels nopass -zadd -zrem -zrange -zremrangebyrank -zscore -publish"
)


@dataclass(frozen=True, slots=True)
class Body:
    """When a task's body ran."""

    number: int
    begun: float
    ended: float


class Scene:
    """A worker, and the bodies that it has run."""

    def __init__(self, app: Any, times: Path) -> None:
        self._app = app
        self._times = times
        self._sent = 0

    def send(self, task: str, count: int, seconds: float) -> range:
        """Send so many calls of a task, and return their numbers."""
        numbers = range(self._sent, self._sent + count)
        self._sent += count
        for number in numbers:
            self._app.send_task(task, (number, seconds), ignore_result=True, queue="waiting")
        return numbers

    def send_with(self, task: str, seconds: float, keys: tuple[str, ...]) -> int:
        """Send a call of a task that needs these keys, and return its number."""
        number, self._sent = self._sent, self._sent + 1
        self._app.send_task(task, (number, seconds, keys), ignore_result=True, queue="waiting")
        return number

    def run(self, task: str, count: int, seconds: float) -> list[Body]:
        """Send so many calls, and return their bodies in the order in which they ran."""
        return self.bodies(self.send(task, count, seconds))

    def bodies(self, numbers: range) -> list[Body]:
        """Wait for the bodies of these calls, and return them in the order in which they ran."""
        deadline = time.monotonic() + _TIMEOUT
        found: list[Body] = []
        while len(found) < len(numbers):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(found)} of {len(numbers)} ran in {_TIMEOUT:.0f} s")
            time.sleep(0.05)
            lines = [line.split() for line in self._times.read_text().splitlines()]
            bodies = [Body(int(number), float(begun), float(end)) for number, begun, end in lines]
            found = [body for body in bodies if body.number in numbers]
        return sorted(found, key=lambda body: body.begun)

    def requeues(self, task: str) -> Counter[str]:
        """Return how often each call of a task was requeued that was, by its id."""
        noted = self._times.with_name(f"{self._times.name}.requeued")
        lines = noted.read_text().splitlines() if noted.exists() else []
        return Counter(line.split()[1] for line in lines if line.split()[0] == task)


def waiting(quick: bool) -> list[Result]:
    """Measure how busy a key is kept, what its waiters cost others, and who goes first."""
    long, short = (20, 100) if quick else (60, 200)
    with LocalCluster(5) as nodes:
        with worker(nodes) as scene:
            keeps_busy, gaps = _busy(scene, long, 0.5)
            keeps_busy_short, _ = _busy(scene, short, 0.02)
            late = _late(scene, long + 40)
            inversions = _inversions(scene, long)
        with worker(nodes, awake=False) as scene:
            kept_busy, gaps_before = _busy(scene, long, 0.5)
            kept_busy_short, _ = _busy(scene, short, 0.02)
            late_before = _late(scene, long + 40)
    middle, last = _at(gaps, 0.5), _at(gaps, 0.99)
    middle_before, last_before = _at(gaps_before, 0.5), _at(gaps_before, 0.99)
    return [
        _result(
            f"{long} bodies of 0.5 s: share of the time that the key is held",
            keeps_busy,
            kept_busy,
            Goal(value=0.97, limit="least"),
        ),
        _result(
            f"{short} bodies of 20 ms: the same",
            keeps_busy_short,
            kept_busy_short,
            Goal(value=0.85, limit="least"),
        ),
        _result(
            f"50 other tasks behind {long + 40} bodies of 0.5 s: seconds later than alone",
            late,
            late_before,
            Goal(value=1.0, limit="most", unit=" s"),
        ),
        _result(
            "from the end of a body to the next, median",
            middle,
            middle_before,
            Goal(value=10, limit="most", unit=" ms"),
        ),
        _result(
            "the same, 99th percentile",
            last,
            last_before,
            Goal(value=100, limit="most", unit=" ms"),
        ),
        _result(
            "lock_fair: waiting messages that were overtaken by a later one",
            inversions,
            None,
            Goal(value=0, limit="most"),
        ),
    ]


def _result(what: str, ours: float, before: float | None, goal: Goal) -> Result:
    detail = "" if before is None else f"without wake-ups {before:.3g}{goal.unit}"
    return Result(row="waiting", what=what, goal=goal, values=[ours], detail=detail)


def _busy(scene: Scene, count: int, seconds: float) -> tuple[float, list[float]]:
    """Return the share of the time in which the key is held, and the gaps between bodies in ms."""
    bodies = scene.run("bench.hot", count, seconds)
    gaps = [(later.begun - body.ended) * 1000 for body, later in itertools.pairwise(bodies)]
    return count * seconds / (bodies[-1].ended - bodies[0].begun), sorted(gaps)


def _late(scene: Scene, count: int) -> float:
    """Return by how many seconds tasks end later that were sent behind those of one key."""
    sent = time.monotonic()
    alone = scene.run("bench.unrelated", 50, 0.02)[-1].ended - sent
    hot = scene.send("bench.hot", count, 0.5)
    sent = time.monotonic()
    behind = scene.run("bench.unrelated", 50, 0.02)[-1].ended - sent
    scene.bodies(hot)
    return behind - alone


def _inversions(scene: Scene, count: int) -> float:
    """Return how many bodies ran before one that had waited longer."""
    pause = 0.05
    scene.send("bench.hot_fair", 1, (count + 10) * pause)
    waiting = []
    for _ in range(count):
        time.sleep(pause)  # so that they begin to wait in the order in which they are sent
        waiting += scene.send("bench.hot_fair", 1, 0.1)
    bodies = scene.bodies(range(waiting[0], waiting[-1] + 1))
    return sum(later.number < body.number for body, later in itertools.pairwise(bodies))


def _at(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


@contextlib.contextmanager
def worker(
    nodes: LocalCluster, *, awake: bool = True, processes: int = 4, workers: int = 1
) -> Iterator[Scene]:
    """Run prefork workers; `awake`: releases wake those who wait."""
    urls = nodes.urls
    if not awake:
        for index in range(len(urls)):
            nodes.client(index).execute_command("ACL", "SETUSER", "asleep", "on", *_ASLEEP.split())
        urls = [url.replace("redis://", "redis://asleep:any@") for url in urls]
    with LocalCluster(1) as broker, tempfile.TemporaryDirectory() as tmp:
        times, log = Path(tmp) / "times", Path(tmp) / "worker.log"
        times.touch()
        environment = {
            "BENCH_BROKER": broker.urls[0],
            "BENCH_NODES": ",".join(urls),
            "BENCH_TIMES": str(times),
            "BENCH_WAIT": "" if awake else "0.5",
        }
        os.environ.update(environment)
        from bench import waiting_worker

        app = importlib.reload(waiting_worker).app
        command = [
            *(sys.executable, "-m", "celery", "-A", "bench.waiting_worker", "worker"),
            *(f"--concurrency={processes}", "--queues=waiting", "--loglevel=WARNING"),
        ]
        with log.open("wb") as output:
            started = [
                subprocess.Popen(  # noqa: S603 - our own command line
                    [*command, f"--hostname=w{number}@%h"],
                    cwd=_ROOT,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                for number in range(workers)
            ]
        try:
            scene = Scene(app, times)
            scene.run("bench.unrelated", 4, 0.0)
            yield scene
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(60)
            app.close()
