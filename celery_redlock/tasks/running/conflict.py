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
from celery_redlock.tasks.holding.arrival import Claim
from celery_redlock.tasks.holding.hold import Hold
from celery_redlock.tasks.messages.owners import Role
from celery_redlock.tasks.news import News, tell
from celery_redlock.tasks.running.choosing import choice_of, ends_here
from celery_redlock.tasks.running.latecomers import raise_duplicate, stand_back
from celery_redlock.tasks.running.overlap import replace_holder
from celery_redlock.tasks.running.requeue import give_up, requeue
from celery_redlock.tasks.running.skips import end_withdrawn, sign, skip
from celery_redlock.tasks.running.twins import is_copy, passes, settle_twin, wait_for_other

__all__ = ["Verdict", "settle"]

logger = get_logger(__name__)

LONGEST_PAUSE_IN_PLACE = 1.0


class Verdict(enum.Enum):
    """How a task goes on that has no lock, where it does not end with an exception."""

    SKIP = "skip"
    RUN_UNLOCKED = "run_unlocked"


def settle(hold: Hold, error: LockNotAcquired) -> Lease | Verdict:
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
    claim = hold.claim
    if _is_about_the_mark(error, claim) and passes(claim, error):
        claim.redlock.reservations.evict(claim.message, error.holder or "")
        try:
            return claim.take(final=partial(ends_here, claim))
        except LockNotAcquired as another:
            error = another
    if _is_about_the_mark(error, claim):
        end_withdrawn(hold, error)
        settle_twin(claim, error)
    if isinstance(error, LockContended) and is_copy(claim, error):
        wait_for_other(claim, error)
    choice = choice_of(claim, error)
    if choice == "run_unlocked":
        return _run_unlocked(claim, error)
    if choice == "requeue" and claim.request.is_eager:
        return _wait_in_place(hold, error)
    if choice == "reject":
        _reject(claim, error)
    if choice == "replace" and isinstance(error, LockContended):
        lease = replace_holder(hold, error)
        if lease is not None:
            return lease
        claim = hold.claim
    try:
        if choice in ("requeue", "replace"):
            requeue(claim, error)
    except LockNotAcquired:
        sign(hold, Role.FAILED)
        raise
    sign(hold, Role.FAILED if choice in ("raise", "reject") else Role.FINISHED)
    if choice == "skip":
        skip(claim, error)
        return Verdict.SKIP
    if isinstance(error, LockContended):
        if choice == "stand back":
            stand_back(claim, error)
        if choice == "duplicate":
            raise_duplicate(claim, error)
    logger.warning(
        "Task %s[%s] fails without its lock: %s", claim.task.name, claim.request.id, error
    )
    raise error


def _is_about_the_mark(error: LockNotAcquired, claim: Claim) -> TypeGuard[LockContended]:
    """Tell whether another message, or another delivery, has what stands for this piece of work."""
    return isinstance(error, LockContended) and bool(claim.message) and error.key == claim.message


def _run_unlocked(claim: Claim, error: LockNotAcquired) -> Verdict:
    logger.error(
        "Task %s[%s] runs WITHOUT its lock, as lock_on_unavailable says; another may run "
        "beside it, and it has no fencing token. %s",
        claim.task.name,
        claim.request.id,
        error,
    )
    tell(News.UNLOCKED, claim.task, claim.request.id, error=error)
    return Verdict.RUN_UNLOCKED


def _reject(claim: Claim, error: LockNotAcquired) -> None:
    """Reject the message where that is safe; otherwise say why not, and let the task fail."""
    task, request = claim.task, claim.request
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


def _wait_in_place(hold: Hold, error: LockNotAcquired) -> Lease:
    """Under `apply()` there is no queue to go back to."""
    claim = hold.claim
    pause = 0.01
    attempts = 0
    while True:
        if _held_around(hold, error):
            raise error
        waited = max(0.0, time.time() - claim.started)
        left = claim.options.give_up_after - waited
        if left <= 0:
            give_up(claim, error, waited, attempts)
        time.sleep(min(left, random.uniform(0.0, pause)))  # noqa: S311  # spreads load only
        pause = min(LONGEST_PAUSE_IN_PLACE, pause * 2)
        attempts += 1
        try:
            return claim.take(final=partial(ends_here, claim))
        except LockNotAcquired as exc:
            error = exc


def _held_around(hold: Hold, error: LockNotAcquired) -> bool:
    """Tell whether the lock is held by the body that runs this one, and would never be free."""
    holder = getattr(error, "holder", None)
    around = hold.enclosing
    while around is not None:
        if around.lease is not None and around.lease.owner == holder:
            return True
        around = around.enclosing
    return False
