"""
`celery-redlock list` with many locks: what another client of the nodes notices, and what it takes.

The command shares the machine's cores with the nodes and with that client. A process that is as
busy and talks to no node shows how much of the effect is that.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.held import hold
from bench.measure import percentile
from bench.pausable import Pausable
from bench.results import Goal, Result, in_microseconds, ratios
from celery_redlock import Redlock
from celery_redlock.testing import LocalCluster

_NODES = 5

#: Seconds from one acquire of the other client to the next: a busy client, on nodes that have time.
_PACE = 0.004

#: Rows that are printed between two looks at the command's memory.
_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """
    One run of the command.

    Attributes:
        first: seconds until its first row.
        total: seconds until its end.
        share: processor seconds of each of these.
        memory: its most bytes, as far as rows were printed.
    """

    first: float
    total: float
    share: float
    memory: int


def listing(quick: bool) -> list[Result]:
    """Measure the other client by turns: alone, beside the list, beside another busy process."""
    few, many, rounds, seconds = (5_000, 20_000, 6, 1.0) if quick else (10_000, 100_000, 20, 2.0)
    with LocalCluster(_NODES) as nodes, Redlock(nodes.urls, ttl=30.0) as client:
        command = [sys.executable, "-m", "celery_redlock", "list", "--nodes", ",".join(nodes.urls)]
        hold(nodes, client, range(few))
        small = _run(command, few)
        hold(nodes, client, range(few, many))
        large = [_run(command, many) for _ in range(1 if quick else 3)]
        share = max(run.share for run in large)
        busy = [sys.executable, "-m", "bench.busy", str(share)]
        taken: dict[str, list[float]] = {"alone": [], "list": [], "busy": []}
        _p99(client, seconds)
        with Pausable(command) as lister, Pausable(busy) as other:
            beside = {"alone": contextlib.nullcontext, "list": lister.running}
            beside["busy"] = other.running
            for number in range(rounds):
                # Each is first as often as any other.
                names = [*taken][number % len(taken) :] + [*taken][: number % len(taken)]
                for name in names:
                    with beside[name]():
                        taken[name].append(_p99(client, seconds))
    listed = list(zip(taken["list"], taken["alone"], strict=True))
    computed = list(zip(taken["busy"], taken["alone"], strict=True))
    return [
        Result(
            row="listing",
            what=f"another client's acquire + release, p99, beside a list of {many} locks / alone",
            goal=Goal(value=1.5, limit="most"),
            values=ratios(listed),
            detail=in_microseconds("beside it", "alone", listed),
        ),
        Result(
            row="listing",
            what="another client's acquire + release, p99, "
            f"beside a process that only computes, {share:.0%} of the time / alone",
            goal=None,
            values=ratios(computed),
            detail=in_microseconds("beside it", "alone", computed),
        ),
        Result(
            row="listing",
            what=f"celery-redlock list, {many} locks: from its start to the first row",
            goal=Goal(value=1.0, limit="most", unit=" s"),
            values=[run.first for run in large],
            detail=f"with {few} locks {small.first:.2f} s",
        ),
        Result(
            row="listing",
            what=f"celery-redlock list, {many} locks: from its start to the last row",
            goal=Goal(value=60.0, limit="most", unit=" s"),
            values=[run.total for run in large],
            detail=f"with {few} locks {small.total:.1f} s",
        ),
        Result(
            row="listing",
            what=f"celery-redlock list: its memory with {many} locks / with {few}",
            goal=Goal(value=1.1, limit="most"),
            values=[run.memory / small.memory for run in large],
            detail=f"{max(run.memory for run in large) / 1e6:.0f} MB, {small.memory / 1e6:.0f} MB",
        ),
    ]


def _p99(client: Redlock, seconds: float) -> float:
    """Let a client acquire and release at its pace, and return the slowest hundredth."""
    taken = []
    end = due = time.perf_counter()
    end += seconds
    while (began := time.perf_counter()) < end:
        client.acquire("key", wait=5.0).release()
        ended = time.perf_counter()
        taken.append(ended - began)
        due = max(due + _PACE, ended)
        time.sleep(due - ended)
    return percentile(0.99)(taken)


def _run(command: list[str], locks: int) -> _Listing:
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 - our own command line
    assert process.stdout is not None
    status = Path(f"/proc/{process.pid}/status")
    first = memory = rows = 0
    for rows, _ in enumerate(process.stdout):
        if rows == 1:  # below the headings
            first = time.perf_counter() - began
        if rows % _ROWS == 0:
            memory = _most_bytes(status.read_text())
    _, state, used = os.wait4(process.pid, 0)
    total = time.perf_counter() - began
    if state or rows != locks:
        raise RuntimeError(f"{rows} of {locks} locks were listed, status {state}")
    share = (used.ru_utime + used.ru_stime) / total
    return _Listing(first=first, total=total, share=share, memory=memory)


def _most_bytes(status: str) -> int:
    (most,) = re.findall(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    return int(most) * 1024
