"""
What a list of many locks costs: another client, the one who waits for the first row, and memory.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.measure import percentile, time_each
from bench.results import Goal, Result
from celery_redlock import Redlock
from celery_redlock.testing import LocalCluster

_MANY, _FEW = 100_000, 1_000
_HOUR = 3_600_000
_BUSY = (sys.executable, "-c", "while True: pass")


def listing(quick: bool) -> list[Result]:
    """Measure a second client's locks beside `celery-redlock list`, its first row and memory."""
    rounds, operations = (3, 500) if quick else (11, 1000)
    with LocalCluster(5) as many, LocalCluster(5) as few:
        _fill(many, _MANY)
        _fill(few, _FEW)
        with Redlock(many.urls) as redlock:
            beside = [_round(redlock, many, operations) for _ in range(rounds)]
        runs = [(_list(many), _list(few)) for _ in range(max(3, rounds // 3))]
    alone, busy, listed = (list(side) for side in zip(*beside, strict=True))
    of_many, of_few = zip(*runs, strict=True)
    seconds = statistics.median(run.seconds for run in of_many)
    first = [statistics.median(run.first for run in side) for side in (of_many, of_few)]
    peak = [statistics.median(run.peak for run in side) for side in (of_many, of_few)]
    p99 = ", ".join(
        f"{name} {1000 * statistics.median(side):.2f} ms"
        for name, side in (("alone", alone), ("beside a busy process", busy), ("listed", listed))
    )
    return [
        _result(
            f"p99 of acquire + release beside a list of {_MANY} locks / alone",
            [one / other for one, other in zip(listed, alone, strict=True)],
            Goal(value=1.5, limit="most", unit="x"),
            f"{p99}; the list takes {seconds:.0f} s",
        ),
        _result(
            "… / beside a process that computes and asks no node",
            [one / other for one, other in zip(listed, busy, strict=True)],
            None,
        ),
        _result(
            f"first row of {_MANY} locks / of {_FEW}, from the start of the command",
            [one.first / other.first for one, other in runs],
            Goal(value=1.5, limit="most", unit="x"),
            f"{first[0]:.2f} s and {first[1]:.2f} s",
        ),
        _result(
            f"most memory of a list of {_MANY} locks / of {_FEW}",
            [one.peak / other.peak for one, other in runs],
            Goal(value=1.1, limit="most", unit="x"),
            f"{peak[0]:.0f} MB and {peak[1]:.0f} MB",
        ),
    ]


def _result(what: str, values: list[float], goal: Goal | None, detail: str = "") -> Result:
    return Result(row="listing", what=what, goal=goal, values=values, detail=detail)


def _fill(nodes: LocalCluster, count: int) -> None:
    """Give every node the same locks, of as many owners."""
    for index in range(len(nodes.urls)):
        pipeline = nodes.client(index).pipeline(transaction=False)
        for number in range(count):
            pipeline.set(f"redlock:bulk:{number}", f"{number:032x} {number}", px=_HOUR)
            if number % 5000 == 4999:
                pipeline.execute()
        pipeline.execute()


def _round(redlock: Redlock, nodes: LocalCluster, operations: int) -> tuple[float, float, float]:
    """Return the p99 of a pair alone, beside a busy process, and beside a list."""
    numbers = itertools.count()
    of = percentile(0.99)

    def pair() -> None:
        redlock.acquire(f"own:{next(numbers)}").release()

    def beside(command: list[str]) -> float:
        with _running(command) as process:
            assert process.stdout is not None
            if command != list(_BUSY):
                process.stdout.readline()  # it lists
            taken = of(time_each(pair, operations))
            assert process.poll() is None, "the list was over too soon"
        return taken

    time_each(pair, 200)
    return of(time_each(pair, operations)), beside(list(_BUSY)), beside(_command(nodes))


def _command(nodes: LocalCluster) -> list[str]:
    return [sys.executable, "-m", "celery_redlock", "list", "--nodes", ",".join(nodes.urls)]


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own
        drain = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)  # noqa: S607
        try:
            yield process
        finally:
            process.kill()
            drain.wait()


class _Run:
    """A whole list: seconds to its first row and to its end, and the most memory in MB."""

    def __init__(self, first: float, seconds: float, peak: float) -> None:
        self.first, self.seconds, self.peak = first, seconds, peak


def _list(nodes: LocalCluster) -> _Run:
    began = time.perf_counter()
    process = subprocess.Popen(_command(nodes), stdout=subprocess.PIPE)  # noqa: S603 - our own
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    first = time.perf_counter() - began
    rows = 1 + sum(1 for _ in process.stdout)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, status
    assert rows in (_MANY, _FEW), rows
    return _Run(first, time.perf_counter() - began, usage.ru_maxrss / 1024)
