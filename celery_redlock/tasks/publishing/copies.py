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
from celery_redlock.tasks.messages.duplicates import DuplicateResult, result_of
from celery_redlock.tasks.messages.owners import Owner, read_owner
from celery_redlock.tasks.messages.places import tick_place
from celery_redlock.tasks.messages.tick import Tick
from celery_redlock.tasks.news import News, tell

__all__ = ["drop_copy", "worker_on"]

logger = get_logger(__name__)


def worker_on(task: Any, redlock: Redlock, tick: Tick) -> Owner | None:
    """Return who works on a tick, or has done so; None also where too few nodes can tell."""
    try:
        (held,) = redlock.reservations.inspect(
            [tick_place(redlock, tick, name=task.name, retries=0, nesting=0)]
        )
    except QuorumUnavailable:
        return None  # the worker that gets the message asks again
    return None if held is None else read_owner(held.owner)


def drop_copy(task: Any, tick: Tick, other: Owner) -> DuplicateResult:
    """Give a message up whose tick has been worked on, and return the result of that."""
    logger.info(
        "Task %s is not sent: entry %r, due at %s, has been worked on by %s",
        task.name,
        tick.entry,
        tick.due_at.isoformat(),
        other.task_id,
    )
    tell(News.DUPLICATE, task, other.task_id, key=None, refused=False)
    return result_of(task, other.task_id, ignored=bool(task.ignore_result))
