"""The unique tasks in a worker, which also notes every message that it is handed."""

from __future__ import annotations

from typing import Any

from celery import signals

from tests.acceptance.apps.seen import note
from tests.acceptance.apps.stage import app
from tests.acceptance.apps.unique_tasks import declare

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
