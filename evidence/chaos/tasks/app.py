"""The Celery app that workers and publishers of the task layer share."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from celery import Celery, signals

from celery_redlock import signals as lock_signals
from evidence.chaos.schedule import DRIFT_FACTOR, MAX_TTL, TTL
from evidence.chaos.tasks.bodies import declare
from evidence.chaos.tasks.kinds import ORDERS, VISIBILITY_TIMEOUT
from evidence.chaos.tasks.process_journal import Notes

orders: dict[str, Any] = json.loads(os.environ[ORDERS])
notes = Notes(Path(orders["directory"]), orders["name"])

app = Celery("chaos", broker=orders["broker"], backend=orders["backend"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": VISIBILITY_TIMEOUT},
    worker_prefetch_multiplier=orders.get("prefetch", 4),
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    result_extended=True,
    redlock_nodes=orders["nodes"],
    redlock_ttl=TTL,
    redlock_max_ttl=MAX_TTL,
    redlock_drift_factor=DRIFT_FACTOR,
)
declare(app, notes)


@signals.worker_init.connect
@signals.worker_process_init.connect
def _begin(**_: Any) -> None:
    notes.note("started", pid=os.getpid())
    notes.watch_for_stalls()


@signals.worker_ready.connect
def _ready(**_: Any) -> None:
    notes.note("ready", pid=os.getpid())


@signals.task_received.connect
def _received(request: Any, **_: Any) -> None:
    notes.note("received", id=request.id, task=request.name)


@signals.task_prerun.connect
def _arrived(task_id: str, task: Any, **_: Any) -> None:
    notes.note("arrived", id=task_id, task=task.name, retries=task.request.retries)


@signals.task_postrun.connect
def _left(task_id: str, task: Any, state: str | None = None, **_: Any) -> None:
    notes.note("left", id=task_id, task=task.name, state=state, retries=task.request.retries)


@signals.task_revoked.connect
def _revoked(request: Any, **_: Any) -> None:
    notes.note("revoked", id=request.id)


@lock_signals.lock_lost.connect
def _lost(sender: Any, task_id: str, reason: str, **_: Any) -> None:
    notes.note("lost", id=task_id, why=reason)


def _note_as(event: str) -> Any:
    def receive(
        sender: Any, task_id: str, by: str = "", delay: float = 0.0, error: Any = None, **_: Any
    ) -> None:
        holder = getattr(error, "holder", None) or ""
        notes.note(event, id=task_id, by=by, delay=delay, holder=holder)

    return receive


for event in (
    *("task_skipped", "task_requeued", "task_superseded", "task_replaced", "task_gave_up"),
    *("task_without_lock", "redelivery_ignored", "redelivery_requeued"),
):
    getattr(lock_signals, event).connect(_note_as(event.removeprefix("task_")), weak=False)
