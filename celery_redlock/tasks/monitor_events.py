"""
Events about locks for Celery's monitors, such as Flower and `celery events`.

Workers send them while they send task events (`worker_send_task_events`, `--task-events`). Each has
the task's id as `uuid`, its name as `name`, the lock key as `key`, and these fields.

| event | what happened | fields |
|---|---|---|
| `task-locked` | it has its lock, and its body begins | `fencing_token` |
| `task-lock-waiting` | it was requeued, for `delay` seconds | `holder`, `reason`, `delay` |
| `task-lock-skipped` | it ended without running | `holder`, `reason` |
| `task-lock-lost` | its lock was lost in its body | `fencing_token`, `reason` |
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from celery_redlock._log import event_logger

__all__ = ["MonitorEvent", "send_monitor_event"]

logger = event_logger(__name__)


class MonitorEvent(StrEnum):
    """The events, by the names that monitors receive."""

    LOCKED = "task-locked"
    WAITING = "task-lock-waiting"
    SKIPPED = "task-lock-skipped"
    LOST = "task-lock-lost"


def send_monitor_event(kind: MonitorEvent, task: Any, request: Any, **fields: Any) -> None:
    """
    Send an event about a request to the monitors, if its worker sends task events.

    A broker that cannot take it does not change the outcome: that is logged. Raises only the time
    limit of the task. May be called from any thread.
    """
    if request.is_eager or not task.send_events or not task.app.conf.worker_send_task_events:
        return
    try:
        # As `Task.send_event`, which finds the request in the thread of the body only.
        with task.app.events.default_dispatcher(hostname=request.hostname) as dispatcher:
            dispatcher.send(kind.value, uuid=request.id, retry=False, name=task.name, **fields)
    except SoftTimeLimitExceeded:
        raise
    except Exception as exc:
        logger.warning(
            "monitor-event-not-sent",
            "The event %(kind)s of task %(task)s[%(task_id)s] could not be sent: %(error)r",
            kind=kind,
            task=task.name,
            task_id=request.id,
            error=exc,
        )
