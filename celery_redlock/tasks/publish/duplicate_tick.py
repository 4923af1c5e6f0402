"""
Copies of a tick that are recognised before they are sent.

Where a task takes its lock when it is sent, a message that comes when the tick has been worked on
would find the lock free and take it. In its queue it would stand for the next ticks, which would be
dropped in its favour, and at last be ignored itself.
"""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger

from celery_redlock.core import Redlock
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.tasks.events import Event, emit
from celery_redlock.tasks.message.duplicate_result import DuplicateResult, result_of
from celery_redlock.tasks.message.node_keys import tick_dedupe_key
from celery_redlock.tasks.message.owner_label import TaskOwner, parse_owner
from celery_redlock.tasks.message.tick import Tick

__all__ = ["drop_duplicate_tick", "tick_owner"]

logger = get_logger(__name__)


def tick_owner(task: Any, redlock: Redlock, tick: Tick) -> TaskOwner | None:
    """Return who works on a tick, or has done so; None also where too few nodes can tell."""
    try:
        (held,) = redlock.reservations.inspect(
            [tick_dedupe_key(redlock, tick, name=task.name, retries=0, nesting=0)]
        )
    except QuorumUnavailable:
        return None  # the worker that gets the message asks again
    return None if held is None else parse_owner(held.owner)


def drop_duplicate_tick(task: Any, tick: Tick, other: TaskOwner) -> DuplicateResult:
    """Give a message up whose tick has been worked on, and return the result of that."""
    logger.info(
        "Task %s is not sent: entry %r, due at %s, has been worked on by %s",
        task.name,
        tick.entry,
        tick.due_at.isoformat(),
        other.task_id,
    )
    emit(Event.DUPLICATE, task, other.task_id, key=None, refused=False)
    return result_of(task, other.task_id, ignored=bool(task.ignore_result))
