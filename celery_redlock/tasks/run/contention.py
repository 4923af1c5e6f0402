"""
What a task does whose lock was not taken.
"""

from __future__ import annotations

import enum
import random
import time
from functools import partial
from typing import Any, TypeGuard

from celery.exceptions import Reject
from celery.utils.log import get_logger

from celery_redlock.core import Lease
from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.tasks.events import Event, emit
from celery_redlock.tasks.message.owner_label import Role
from celery_redlock.tasks.run.lock_request import LockRequest
from celery_redlock.tasks.run.overlap import request_stop
from celery_redlock.tasks.run.policy import action_for, is_final
from celery_redlock.tasks.run.redelivery import (
    end_redelivery,
    is_same_tick,
    may_start_anyway,
    requeue_redelivery,
)
from celery_redlock.tasks.run.requeue import fail_exhausted, requeue
from celery_redlock.tasks.run.running_lock import RunningLock
from celery_redlock.tasks.run.skip import end_withdrawn, leave_marker, skip
from celery_redlock.tasks.run.superseded import end_as_superseded, fail_as_duplicate

__all__ = ["Verdict", "apply_policy"]

logger = get_logger(__name__)

LONGEST_PAUSE_IN_PLACE = 1.0


class Verdict(enum.Enum):
    """How a task goes on that has no lock, where it does not end with an exception."""

    SKIP = "skip"
    RUN_UNLOCKED = "run_unlocked"


def apply_policy(running_lock: RunningLock, error: LockNotAcquired) -> Lease | Verdict:
    """
    Follow the task's policy after a failed attempt.

    Returns:
        How to go on; a lease if waiting in place was the policy and paid off.

    Raises:
        Retry: the message was put back into its queue.
        Ignore: it is another's to end this task: an earlier delivery, or a task that replaced it.
        Reject: the message goes back to the broker or to the dead letters.
        LockNotAcquired: the task fails.
        DuplicateTask: so does one whose work another task does.
    """
    lock_request = running_lock.lock_request
    if _is_about_marker(error, lock_request) and may_start_anyway(lock_request, error):
        lock_request.redlock.reservations.evict(lock_request.dedupe_key, error.holder or "")
        try:
            return lock_request.acquire(final=partial(is_final, lock_request))
        except LockNotAcquired as another:
            error = another
    if _is_about_marker(error, lock_request):
        end_withdrawn(running_lock, error)
        end_redelivery(lock_request, error)
    if isinstance(error, LockContended) and is_same_tick(lock_request, error):
        requeue_redelivery(lock_request, error)
    action = action_for(lock_request, error)
    if action == "run_unlocked":
        return _run_unlocked(lock_request, error)
    if action == "requeue" and lock_request.request.is_eager:
        return _wait_in_place(running_lock, error)
    if action == "reject":
        _reject(lock_request, error)
    if action == "replace" and isinstance(error, LockContended):
        lease = request_stop(running_lock, error)
        if lease is not None:
            return lease
        lock_request = running_lock.lock_request
    try:
        if action in ("requeue", "replace"):
            requeue(lock_request, error)
    except LockNotAcquired:
        leave_marker(running_lock, Role.FAILED)
        raise
    leave_marker(running_lock, Role.FAILED if action in ("raise", "reject") else Role.FINISHED)
    if action == "skip":
        skip(lock_request, error)
        return Verdict.SKIP
    if isinstance(error, LockContended):
        if action == "superseded":
            end_as_superseded(lock_request, error)
        if action == "duplicate":
            fail_as_duplicate(lock_request, error)
    logger.warning(
        "Task %s[%s] fails without its lock: %s",
        lock_request.task.name,
        lock_request.request.id,
        error,
    )
    raise error


def _is_about_marker(error: LockNotAcquired, lock_request: LockRequest) -> TypeGuard[LockContended]:
    """Tell whether another message, or another delivery, has what stands for this piece of work."""
    return (
        isinstance(error, LockContended)
        and bool(lock_request.dedupe_key)
        and error.key == lock_request.dedupe_key
    )


def _run_unlocked(lock_request: LockRequest, error: LockNotAcquired) -> Verdict:
    logger.error(
        "Task %s[%s] runs WITHOUT its lock, as lock_on_unavailable says; another may run "
        "beside it, and it has no fencing token. %s",
        lock_request.task.name,
        lock_request.request.id,
        error,
    )
    emit(Event.WITHOUT_LOCK, lock_request.task, lock_request.request.id, error=error)
    return Verdict.RUN_UNLOCKED


def _reject(lock_request: LockRequest, error: LockNotAcquired) -> None:
    """Reject the message where that is safe; otherwise say why not, and let the task fail."""
    task, request = lock_request.task, lock_request.request
    if request.is_eager or not task.acks_late:
        why = "its message is already acknowledged (acks_late is off)"
    elif _in_chord(request):
        why = "a rejected member would keep its chord waiting for ever"
    else:
        logger.warning("Task %s[%s] is rejected: %s", task.name, request.id, error)
        raise Reject(error, requeue=False)
    logger.warning("Task %s[%s] fails instead of being rejected: %s.", task.name, request.id, why)


def _in_chord(request: Any) -> bool:
    if request.chord:
        return True
    steps = request.chain or ()
    return any((step.get("options") or {}).get("chord") for step in steps)


def _wait_in_place(running_lock: RunningLock, error: LockNotAcquired) -> Lease:
    """Under `apply()` there is no queue to go back to."""
    lock_request = running_lock.lock_request
    pause = 0.01
    attempts = 0
    while True:
        if _is_held_by_enclosing(running_lock, error):
            raise error
        waited = max(0.0, time.time() - lock_request.started)
        left = lock_request.options.give_up_after - waited
        if left <= 0:
            fail_exhausted(lock_request, error, waited, attempts)
        time.sleep(min(left, random.uniform(0.0, pause)))  # noqa: S311  # spreads load only
        pause = min(LONGEST_PAUSE_IN_PLACE, pause * 2)
        attempts += 1
        try:
            return lock_request.acquire(final=partial(is_final, lock_request))
        except LockNotAcquired as exc:
            error = exc


def _is_held_by_enclosing(running_lock: RunningLock, error: LockNotAcquired) -> bool:
    """Tell whether the lock is held by the body that runs this one, and would never be free."""
    holder = getattr(error, "holder", None)
    around = running_lock.enclosing
    while around is not None:
        if around.lease is not None and around.lease.owner == holder:
            return True
        around = around.enclosing
    return False
