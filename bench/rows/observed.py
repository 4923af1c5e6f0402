"""
What metrics and traces cost a real prefork worker, in tasks per second.
"""

from __future__ import annotations

import contextlib

from bench.prefork import by_turns, compared, staged
from bench.results import Result

_TASK = "bench.locked"
_BARE, _METRICS, _TRACES = "nothing", "prometheus", "opentelemetry"


def observed(quick: bool) -> list[Result]:
    """Measure tasks that lock in workers with metrics, with traces and without, by turns."""
    rounds, tasks = (5, 400) if quick else (31, 1000)
    kinds = [_BARE, _METRICS, _TRACES]
    with staged(tasks) as stage, contextlib.ExitStack() as opened:
        files = stage.directory / "metrics"
        files.mkdir()
        # As docs tell workers with several processes.
        own = {_METRICS: {"PROMETHEUS_MULTIPROC_DIR": str(files)}}
        workers = {
            kind: opened.enter_context(
                stage.worker(kind, BENCH_OBSERVED_BY=kind, **own.get(kind, {}))
            )
            for kind in kinds
        }
        rates = by_turns(kinds, rounds, lambda kind: stage.rate(workers[kind], _TASK))
    return [
        compared("observed", f"RedlockTask with {what} / without", rates[kind], rates[_BARE], goal)
        for what, kind, goal in (
            ("metrics of several processes", _METRICS, 0.98),
            ("traces, written at once", _TRACES, None),
        )
    ]
