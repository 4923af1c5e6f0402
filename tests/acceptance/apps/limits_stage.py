"""The tasks with a limit or a rate, in a worker, which notes each requeue."""

from __future__ import annotations

from typing import Any

from celery_redlock.signals import task_requeued
from tests.acceptance.apps.limits import declare
from tests.acceptance.apps.stage import app
from tests.acceptance.apps.visible import note

declare(app)


@task_requeued.connect
def _note_requeue(sender: Any, task_id: str, **_: Any) -> None:
    if sender.name.startswith("limits."):
        note(sender.request.args[0], "requeued", id=task_id)
