"""Tasks of a worker that exports metrics; the journal has what ran."""

from __future__ import annotations

import time
from typing import Any

from celery_redlock import RedlockTask
from celery_redlock.prometheus import export_metrics
from celery_redlock.signals import task_requeued
from tests.acceptance.apps.stage import app, note

export_metrics()


@task_requeued.connect
def note_requeue(task_id: str, **_: Any) -> None:
    note("metrics", "requeued", task=task_id)


def body(number: int) -> str:
    note("metrics", "ran", number=number)
    time.sleep(0.01)  # so that they meet
    return "ran"


COMMON: dict[str, Any] = {
    "base": RedlockTask,
    "lock_key": lambda number: f"metrics:{number % 10}",
    "lock_wait": 0,
}

app.task(body, name="waits", **COMMON)
app.task(body, name="skips", lock_on_conflict="skip", **COMMON)
