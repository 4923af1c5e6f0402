"""The unique tasks in a worker, which notes every message and holds some tasks up."""

from __future__ import annotations

from typing import Any

from celery import signals

from tests.acceptance.apps.stage import app
from tests.acceptance.apps.unique_tasks import declare
from tests.acceptance.apps.visible import await_gate, note

declare(app)


@signals.task_received.connect
def note_delivery(request: Any, **_: Any) -> None:
    key = request.args[0] if request.args else None
    if isinstance(key, str):
        note(
            key,
            "delivered",
            id=request.id,
            task=request.name,
            redelivered=bool(request.delivery_info.get("redelivered")),
        )


@signals.task_prerun.connect
def hold_back(task: Any, args: Any, **_: Any) -> None:
    """Hold a task up that a child process has begun, before its lock is taken over."""
    if task.name.endswith(".held_back"):
        note(args[0], "begun")
        await_gate(args[0], "begin")
