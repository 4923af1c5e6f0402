"""
Tasks per second through a real prefork worker.
"""

from __future__ import annotations

from functools import partial

from bench.prefork import by_turns, compared, staged
from bench.results import Result

_LOCKED, _UNLOCKED, _PLAIN = "bench.locked", "bench.without_options", "bench.plain"


def throughput(quick: bool) -> list[Result]:
    """Measure tasks that lock, tasks that could, and plain tasks, in turns."""
    rounds, tasks = (5, 400) if quick else (21, 1000)
    with staged(tasks) as stage, stage.worker("worker") as worker:
        rates = by_turns([_LOCKED, _UNLOCKED, _PLAIN], rounds, partial(stage.rate, worker))
    return [
        compared("tasks", f"{what} / plain task", rates[name], rates[_PLAIN], goal)
        for what, name, goal in (
            ("RedlockTask", _LOCKED, 0.75),
            ("RedlockTask without lock options", _UNLOCKED, 0.98),
        )
    ]
