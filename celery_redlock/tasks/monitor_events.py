"""
Events about locks for Celery's monitors, such as Flower and `celery events`.

Workers send them while they send task events (`worker_send_task_events`, `--task-events`). Each has
the task's id as `uuid`, its name as `name`, the lock key as `key`, and these fields. Their types do
not begin with `task-`, because monitors read such a type as the state of the task.

| event | what happened | fields |
|---|---|---|
| `redlock-locked` | it has its lock, and its body begins | `fencing_token` |
| `redlock-waiting` | it was requeued, for `delay` seconds | `holder`, `reason`, `delay` |
| `redlock-skipped` | it ended without running | `holder`, `reason` |
| `redlock-lost` | its lock was lost in its body | `fencing_token`, `reason` |
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any

from celery_redlock._greenlets.threads import register_at_fork, start_thread
from celery_redlock._log import event_logger
from celery_redlock.tasks.border import RequestLike, TaskLike

logger = event_logger(__name__)

#: Most events that a process keeps while the broker does not take them.
MOST_WAITING = 1000


class MonitorEvent(StrEnum):
    """The events, by the names that monitors receive."""

    LOCKED = "redlock-locked"
    WAITING = "redlock-waiting"
    SKIPPED = "redlock-skipped"
    LOST = "redlock-lost"


class _Outbox:
    """
    Sends events one after the other in a thread of its own, or in a greenlet.

    So a broker that does not reply holds up no task. While `MOST_WAITING` events wait, further ones
    are dropped; this is logged once, and again only after half of them have been sent.
    """

    def __init__(self) -> None:
        self._waiting: queue.Queue[Callable[[], None]] = queue.Queue(MOST_WAITING)
        self._is_full = False
        start_thread(self._run, "redlock-events")

    def put(self, send: Callable[[], None]) -> None:
        """Send soon; never waits."""
        try:
            self._waiting.put_nowait(send)
        except queue.Full:
            if not self._is_full:
                logger.warning(
                    "monitor-events-dropped",
                    "%(count)d events about locks wait for the broker; further ones are dropped",
                    count=MOST_WAITING,
                )
            self._is_full = True
        else:
            if self._waiting.qsize() <= MOST_WAITING // 2:
                self._is_full = False

    def _run(self) -> None:
        while True:
            self._waiting.get()()


_outbox: _Outbox | None = None
_lock = threading.Lock()


def send_monitor_event(
    kind: MonitorEvent, task: TaskLike, request: RequestLike, **fields: Any
) -> None:
    """
    Send an event about a request to the monitors, if its worker sends task events.

    Returns at once; if the broker cannot take the event, that is only logged. Events that wait when
    the process ends are lost. May be called from any thread.
    """
    global _outbox  # made at first use, when it is certain whether threads are greenlets
    if request.is_eager or not task.send_events or not task.app.conf.worker_send_task_events:
        return
    with _lock:
        if _outbox is None:
            _outbox = _Outbox()
    _outbox.put(partial(_send, kind, task, request.id, request.hostname, fields))


def _send(
    kind: MonitorEvent, task: TaskLike, task_id: str, hostname: str, fields: dict[str, Any]
) -> None:
    try:
        # As `Task.send_event`, which finds the request in the thread of the body only.
        with task.app.events.default_dispatcher(hostname=hostname) as dispatcher:
            dispatcher.send(kind.value, uuid=task_id, retry=False, name=task.name, **fields)
    except Exception as exc:
        logger.warning(
            "monitor-event-not-sent",
            "The event %(kind)s of task %(task)s[%(task_id)s] could not be sent: %(error)r",
            kind=kind,
            task=task.name,
            task_id=task_id,
            error=exc,
        )


def _reset_after_fork() -> None:
    global _outbox, _lock  # the thread is the parent's, which may have held the lock as it forked
    _outbox, _lock = None, threading.Lock()


register_at_fork(after_in_child=_reset_after_fork)
