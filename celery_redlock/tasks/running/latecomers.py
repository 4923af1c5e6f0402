"""
Messages that arrive when another task does their work, or has taken their place.
"""

from __future__ import annotations

from typing import NoReturn

from celery.exceptions import Ignore
from celery.utils.log import get_logger

from celery_redlock.errors import DuplicateTask, LockContended
from celery_redlock.tasks.holding.arrival import Claim
from celery_redlock.tasks.messages.duplicates import result_of
from celery_redlock.tasks.messages.owners import read_owner
from celery_redlock.tasks.news import News, tell
from celery_redlock.tasks.running.requeue import ignores_result

__all__ = ["raise_duplicate", "stand_back"]

logger = get_logger(__name__)


def raise_duplicate(claim: Claim, error: LockContended) -> NoReturn:
    """Fail a duplicate that had to be sent, as its publish would have failed."""
    task, request = claim.task, claim.request
    existing = _holder_of(error)
    logger.warning("Task %s[%s] fails as a duplicate: %s", task.name, request.id, error)
    tell(News.DUPLICATE, task, existing, key=error.key, refused=True)
    duplicate = DuplicateTask(
        f"Task {task.name}[{request.id}] was not run: {existing} has the lock {error.key!r} "
        "already. lock_on_conflict='existing' would end it as a skip instead of a failure.",
        existing,
    )
    duplicate.result = result_of(task, existing, ignored=bool(ignores_result(task, request)))
    raise duplicate from error


def stand_back(claim: Claim, error: LockContended) -> NoReturn:
    """End a task whose lock a newer one has taken over (`lock_on_conflict="replace"`)."""
    task, request = claim.task, claim.request
    newer = _holder_of(error)
    logger.info("Task %s[%s] gives way to %s, which replaces it", task.name, request.id, newer)
    tell(News.SUPERSEDED, task, request.id, by=newer)
    # What a worker does with a revoked task: its chord and who waits for it are told.
    task.backend.mark_as_revoked(
        request.id,
        f"replaced by {newer}",
        request=request,
        store_result=not ignores_result(task, request),
    )
    raise Ignore(f"replaced by {newer}")


def _holder_of(error: LockContended) -> str:
    holder = read_owner(error.holder)
    return holder.task_id if holder is not None else ""
