"""
The events of tasks that their locks cause, each with a signal.

No skip, requeue or drop is silent. The caller logs the event, because it knows the reason.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from celery.utils.dispatch import Signal

from celery_redlock._log import event_logger
from celery_redlock.tasks.border import TaskLike

logger = event_logger(__name__)


class Event(StrEnum):
    """The events; each value is the name of its signal."""

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
