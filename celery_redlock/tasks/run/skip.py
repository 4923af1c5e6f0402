"""
Messages that end without their body.
"""

from __future__ import annotations

from celery.utils.log import get_logger

from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.tasks.events import Event, emit
from celery_redlock.tasks.message.owner_label import Role
from celery_redlock.tasks.run.lock_request import LockRequest
from celery_redlock.tasks.run.redelivery import end_redelivery
from celery_redlock.tasks.run.running_lock import RunningLock
from celery_redlock.tasks.run.superseded import end_as_superseded, withdrawn_as

__all__ = ["end_withdrawn", "leave_marker", "send_skip_event", "skip"]

logger = get_logger(__name__)

SKIPPED_EVENT = "task-lock-skipped"


def leave_marker(running_lock: RunningLock, role: Role = Role.FINISHED) -> None:
    """
    Leave the mark for a message that ends without its body, so that no copy of it runs.

    Args:
        running_lock: of the request.
        role: what the mark says then; a tick's says that it was skipped.

    Raises:
        Ignore: another delivery has the mark, or the message was replaced or revoked meanwhile.
    """
    if running_lock.lock_request.dedupe_key:
        _leave_marker(running_lock, role)


def end_withdrawn(running_lock: RunningLock, error: LockContended) -> None:
    """
    End a message whose mark says that it is not to run, if it does.

    Raises:
        Ignore: it does.
    """
    role = withdrawn_as(error)
    if role is not None:
        _leave_marker(running_lock, role, over=error)
        end_as_superseded(running_lock.lock_request, error)


def _leave_marker(running_lock: RunningLock, role: Role, over: LockContended | None = None) -> None:
    lock_request = running_lock.lock_request
    try:
        running_lock.lease = lock_request.acquire_marker(over)
        running_lock.ended_as = role
    except LockContended as met:
        if over is None:
            end_withdrawn(running_lock, met)
        end_redelivery(lock_request, met)
    except LockNotAcquired as error:
        logger.warning(
            "Task %s[%s] ends without a mark; another delivery of its message would be taken for "
            "a new one: %s",
            lock_request.task.name,
            lock_request.request.id,
            error,
        )


def skip(lock_request: LockRequest, error: LockNotAcquired) -> None:
    """Tell that a task is skipped, because another does the work or is at it."""
    task, request = lock_request.task, lock_request.request
    logger.info(
        "Task %s[%s] is skipped and ends with lock_skip_result %r: %s",
        task.name,
        request.id,
        lock_request.options.skip_result,
        error,
    )
    emit(Event.SKIPPED, task, request.id, error=error)
    send_skip_event(
        lock_request, key=getattr(error, "key", None), holder=getattr(error, "holder", None)
    )


def send_skip_event(
    lock_request: LockRequest, *, key: str | None = None, holder: str | None = None
) -> None:
    """Send Celery's monitors an event about a task that is skipped. Never raises."""
    task = lock_request.task
    if lock_request.request.is_eager or not task.send_events:
        return
    try:
        task.send_event(SKIPPED_EVENT, retry=False, name=task.name, key=key, holder=holder)
    except Exception as exc:
        # An event is news, not work: a broker that cannot take it does not change the outcome.
        logger.warning("The event %s could not be sent: %r", SKIPPED_EVENT, exc)
