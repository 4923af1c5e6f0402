"""
The events of tasks that their locks cause: each has a signal and a counter.

No skip, requeue or drop is silent. The caller logs the event, because it knows the reason.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from celery.utils.dispatch import Signal

from celery_redlock._greenlets.forks import register_at_fork
from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock._log import event_logger

__all__ = ["SIGNALS", "Event", "counters", "emit"]

logger = event_logger(__name__)


class Event(StrEnum):
    """The events; each value is the name of its signal and of its counter."""

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

_counts: dict[Event, int] = dict.fromkeys(Event, 0)
# LeaseLost handlers emit from their own threads.
_lock = native_lock()


def emit(kind: Event, task: Any, task_id: str | None, **facts: Any) -> None:
    """
    Count an event and send its signal. Never raises.

    Args:
        kind: the event.
        task: sender of the signal.
        task_id: id of the task that the event is about.
        facts: further arguments of the receivers.
    """
    with _lock:
        _counts[kind] += 1
    try:
        SIGNALS[kind].send(sender=task, task_id=task_id, **facts)
    except Exception:
        logger.exception(
            "signal-receiver-failed",
            "A receiver of %(signal)s raised",
            signal=kind,
        )


def counters() -> dict[str, int]:
    """Return the number of events of each kind since this process began."""
    return {kind.value: count for kind, count in _counts.items()}


def _reset_after_fork() -> None:
    """Count anew in a forked child."""
    global _lock  # the parent may have held it when it forked
    _lock = native_lock()
    _counts.update(dict.fromkeys(Event, 0))


register_at_fork(after_in_child=_reset_after_fork)
