"""
What happened to tasks because of their locks: told to signals and counted.

A task that is skipped, put back or dropped looks to its caller like many others. So nothing of that
kind happens silently: each has a signal for the process in which it happens and a counter there.
The log line stays with whoever decides, who knows the reason.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Any

from celery.utils.dispatch import Signal
from celery.utils.log import get_logger

from celery_redlock._greenlets.unpatched import native_lock

__all__ = ["SIGNALS", "Event", "counters", "emit"]

logger = get_logger(__name__)


class Event(StrEnum):
    """The kinds of news; each value is the name of its signal and of its counter."""

    SKIPPED = "task_skipped"  #: ended without running: another task does or did the work
    REQUEUED = "task_requeued"  #: put back into its queue, because its lock was taken
    DUPLICATE = "task_duplicate"  #: not sent: the existing task stands for it
    REPLACED = "task_replaced"  #: gave way to a newer one, or was asked to while it runs
    SUPERSEDED = "task_superseded"  #: arrived after a newer one had taken its place, and ended
    REDELIVERY_IGNORED = (
        "redelivery_ignored"  #: a second delivery of a message whose task has finished
    )
    REDELIVERY_REQUEUED = (
        "redelivery_requeued"  #: a second delivery of a message whose task still runs
    )
    TICK_MISSED = "tick_missed"  #: arrived after its `lock_starting_deadline`, and ended
    TICK_SUPERSEDED = "tick_superseded"  #: sent by a leader that had been superseded, and dropped
    LOCK_LOST = "lock_lost"  #: while the body ran
    WITHOUT_LOCK = (
        "task_without_lock"  #: sent or run without its lock: no quorum answered or agreed
    )
    GAVE_UP = "task_gave_up"  #: waited for its lock for longer than `lock_give_up_after`


SIGNALS: dict[Event, Signal] = {
    kind: Signal(name=kind.value, providing_args={"task_id"}) for kind in Event
}

_counts: dict[Event, int] = dict.fromkeys(Event, 0)
# Losses are told from threads of their own.
_lock = native_lock()


def emit(kind: Event, task: Any, task_id: str | None, **facts: Any) -> None:
    """
    Count a piece of news, and send its signal. Never raises.

    Args:
        kind: what happened.
        task: the task, which is the signal's sender.
        task_id: whom it happened to.
        facts: what else the receivers get, by name.
    """
    with _lock:
        _counts[kind] += 1
    try:
        SIGNALS[kind].send(sender=task, task_id=task_id, **facts)
    except Exception:
        logger.exception("Receivers of %s could not be told", kind)


def counters() -> dict[str, int]:
    """Return how often each kind of news was told in this process since it began."""
    return {kind.value: count for kind, count in _counts.items()}


def _reset_after_fork() -> None:
    """A forked child tells of itself only."""
    global _lock  # the parent may have held it when it forked
    _lock = native_lock()
    _counts.update(dict.fromkeys(Event, 0))


os.register_at_fork(after_in_child=_reset_after_fork)
