"""What most scenes do: name entries, end beats, wait until all is done, and judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.acceptance.beat.beats import Beat
from tests.acceptance.beat.checker import Violation
from tests.acceptance.beat.history import History, read_history
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import wait_until


def entry(task: str, key: str, name: str, schedule: float | dict[str, Any] = 1.0) -> dict[str, Any]:
    """An entry of a schedule, by its name, for one of the tasks."""
    return {name: {"task": task, "schedule": schedule, "args": [key, name]}}


def end_all(*beats: Beat) -> None:
    """End beats together, and wait for each."""
    for beat in beats:
        beat.end()


def settled(worker: Worker, journal: Journal) -> History:
    """Return the history once the worker has nothing left to do."""

    def history_at_rest() -> History | None:
        if not worker.queue_is_empty:
            return None
        history = read_history(journal.entries)
        return history if all(run.ended for run in history.runs) else None

    return wait_until(history_at_rest, message=lambda: f"{worker.name} to come to rest")


def assert_none(violations: Iterator[Violation]) -> None:
    found = [str(violation) for violation in violations]
    assert not found, "\n".join(found)
