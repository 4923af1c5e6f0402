"""
Two of five nodes stopped (SIGSTOP): they accept connections and bytes, and never answer.
"""

from __future__ import annotations

from bench.measure import percentile, time_each
from bench.results import Goal, Result, in_microseconds, ratios
from celery_redlock import Redlock
from celery_redlock.testing import LocalCluster

_STOPPED = (3, 4)
_SETTLING = 20


def stopped_nodes(quick: bool) -> list[Result]:
    """Compare the slowest hundredth of operations without and with stopped nodes."""
    rounds, operations = (6, 500) if quick else (20, 1000)
    p99 = percentile(0.99)
    pairs, worst = [], 0.0
    with LocalCluster(5) as nodes, Redlock(nodes.urls) as redlock:

        def acquire_and_release() -> None:
            if not redlock.acquire("key").release():
                raise RuntimeError("the lock did not last")

        time_each(acquire_and_release, 200)
        for _ in range(rounds):
            healthy = p99(time_each(acquire_and_release, operations))
            for index in _STOPPED:
                nodes.pause(index)
            worst = max(worst, *time_each(acquire_and_release, _SETTLING))
            stopped = time_each(acquire_and_release, operations)
            for index in _STOPPED:
                nodes.resume(index)
            worst = max(worst, *stopped, *time_each(acquire_and_release, _SETTLING))
            pairs.append((p99(stopped), healthy))
    return [
        Result(
            row="stopped",
            what="acquire + release, p99, with 2 of 5 nodes stopped / with all healthy",
            goal=Goal(value=1.5, limit="most"),
            values=ratios(pairs),
            detail=f"{in_microseconds('stopped', 'healthy', pairs)}; "
            f"worst single one, transitions included, {worst * 1000:.1f} ms",
        )
    ]
