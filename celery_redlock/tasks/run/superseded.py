"""
Messages that arrive when another task does their work, or has taken their place.
"""

from __future__ import annotations

from typing import NoReturn

from celery.exceptions import Ignore
from celery.utils.log import get_logger

from celery_redlock.errors import DuplicateTask, LockContended
from celery_redlock.tasks.events import Event, emit
from celery_redlock.tasks.message.duplicate_result import result_of
from celery_redlock.tasks.message.owner_label import Role, label_id, parse_owner
from celery_redlock.tasks.run.lock_request import LockRequest
from celery_redlock.tasks.run.requeue import ignores_result

__all__ = ["end_as_superseded", "fail_as_duplicate", "withdrawn_as"]

logger = get_logger(__name__)


def fail_as_duplicate(lock_request: LockRequest, error: LockContended) -> NoReturn:
    """Fail a duplicate that had to be sent, as its publish would have failed."""
    task, request = lock_request.task, lock_request.request
    existing = _holder_of(error)
    logger.warning("Task %s[%s] fails as a duplicate: %s", task.name, request.id, error)
    emit(Event.DUPLICATE, task, existing, key=error.key, refused=True)
    duplicate = DuplicateTask(
        f"Task {task.name}[{request.id}] was not run: {existing} has the lock {error.key!r} "
        "already. lock_on_conflict='existing' would end it as a skip instead of a failure.",
        existing,
    )
    duplicate.result = result_of(task, existing, ignored=bool(ignores_result(task, request)))
    raise duplicate from error


#: What becomes of a message whose mark says that it is not to run. Nobody does the work of one
#: that was revoked.
WITHDRAWN = {Role.REPLACED: Role.FINISHED, Role.REVOKED: Role.FAILED}


def withdrawn_as(error: LockContended) -> Role | None:
    """Return what the mark of a message that is not to run says from now on; None: it may run."""
    holder = parse_owner(error.holder)
    return None if holder is None else WITHDRAWN.get(holder.role)


def end_as_superseded(lock_request: LockRequest, error: LockContended) -> NoReturn:
    """End a task whose place a newer one has taken, or that was revoked while it waited."""
    task, request = lock_request.task, lock_request.request
    newer = _holder_of(error)
    replaced = newer != label_id(request.id)
    why = f"replaced by {newer}" if replaced else "revoked"
    logger.info("Task %s[%s] ends without its body: it was %s", task.name, request.id, why)
    if replaced:
        emit(Event.SUPERSEDED, task, request.id, by=newer)
    # What a worker does with a revoked task: its chord and who waits for it are told.
    task.backend.mark_as_revoked(
        request.id,
        why,
        request=request,
        store_result=not ignores_result(task, request),
    )
    raise Ignore(why)


def _holder_of(error: LockContended) -> str:
    holder = parse_owner(error.holder)
    return holder.task_id if holder is not None else ""
