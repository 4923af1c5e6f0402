"""
The events of tasks that their locks cause, as signals and for monitors.

No skip, requeue or drop is silent: each has a signal. The caller logs the event, because it knows
the reason.

Celery's monitors, such as Flower and `celery events`, get the following events while workers send
task events (`worker_send_task_events`, `--task-events`). Each has the task's id as `uuid`, its name
as `name`, the lock key as `key`, and these fields. Their types do not begin with `task-`, because
monitors read such a type as the state of the task.

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

from celery.utils.dispatch import Signal

from celery_redlock._greenlets.threads import register_at_fork, start_thread
from celery_redlock._log import event_logger
from celery_redlock.tasks.border import RequestLike, TaskLike

logger = event_logger(__name__)

#: Most events for monitors that a process keeps while the broker does not take them.
MOST_WAITING = 1000


class Event(StrEnum):
    """The events that have a signal; each value is its name."""

    SKIPPED = "task_skipped"  #: ended without its body: another task does or did the work
    REQUEUED = "task_requeued"  #: sent back to its queue, because its lock is held
    DUPLICATE = "task_duplicate"  #: not sent: the sender gets the existing task
    REPLACED = "task_replaced"  #: replaced by a newer one while queued, or requested to stop
    SUPERSEDED = "task_superseded"  #: received after it had been replaced, and ended
    REDELIVERY_IGNORED = "redelivery_ignored"  #: redelivery of a message whose task has finished
    REDELIVERY_REQUEUED = "redelivery_requeued"  #: redelivery of a message whose task still runs
    TICK_MISSED = "tick_missed"  #: received after its `lock_starting_deadline`, and ended
    TICK_SUPERSEDED = "tick_superseded"  #: sent by a superseded leader, and dropped
    LOCK_LOST = "lock_lost"  #: the lock was lost while the body ran
    WITHOUT_LOCK = (
        "task_without_lock"  #: sent or run without its lock: no quorum answered or agreed
    )
    NODE_FAILED = "lock_node_failed"  #: sent with its lock, while a minority of nodes failed
    GAVE_UP = "task_gave_up"  #: waited for its lock longer than `lock_give_up_after`


SIGNALS: dict[Event, Signal] = {
    kind: Signal(name=kind.value, providing_args={"task_id"}) for kind in Event
}


def emit(kind: Event, task: TaskLike, task_id: str | None, **facts: Any) -> None:
    """
    Count an event and send its signal. Never raises.

    Args:
        kind: the event.
        task: sender of the signal.
        task_id: id of the task that the event is about.
        facts: further arguments of the receivers.
    """
    try:
        SIGNALS[kind].send(sender=task, task_id=task_id, **facts)
    except Exception:
        logger.exception(
            "signal-receiver-failed",
            "A receiver of %(signal)s raised",
            signal=kind,
        )


class MonitorEvent(StrEnum):
    """The events for monitors, by the names that these receive."""

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
_outbox_lock = threading.Lock()


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
    with _outbox_lock:
        if _outbox is None:
            _outbox = _Outbox()
    _outbox.put(partial(_send_one, kind, task, request.id, request.hostname, fields))


def _send_one(
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
    # The thread is the parent's, which may have held the lock as it forked.
    global _outbox, _outbox_lock
    _outbox, _outbox_lock = None, threading.Lock()


register_at_fork(after_in_child=_reset_after_fork)
