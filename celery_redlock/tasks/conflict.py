"""
What a task does whose lock was not taken (`lock_on_conflict`, `lock_on_unavailable`).
"""

from __future__ import annotations

import enum
import random
import time
from typing import Any

from celery.exceptions import Reject
from celery.utils.log import get_logger

from celery_redlock.core import Lease
from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.tasks.arrival import Claim
from celery_redlock.tasks.hold import Hold
from celery_redlock.tasks.latecomers import raise_duplicate, stand_back
from celery_redlock.tasks.news import News, tell
from celery_redlock.tasks.owners import Owner, Role, read_owner
from celery_redlock.tasks.places import has_all
from celery_redlock.tasks.policies import PUBLISH, RUN, policy_name
from celery_redlock.tasks.requeue import give_up, requeue
from celery_redlock.tasks.twins import settle_twin

__all__ = ["SKIPPED_EVENT", "Verdict", "settle"]

logger = get_logger(__name__)

SKIPPED_EVENT = "task-lock-skipped"
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
    if isinstance(error, LockContended) and claim.message and error.key == claim.message:
        settle_twin(claim, error)
    choice = _choice(claim, error)
    if choice == "run_unlocked":
        return _run_unlocked(claim, error)
    if choice == "requeue" and claim.request.is_eager:
        return _wait_in_place(hold, error)
    if choice == "reject":
        _reject(claim, error)
    try:
        if choice == "requeue":
            requeue(claim, error)
    except LockNotAcquired:
        _sign(hold)
        raise
    _sign(hold)
    if choice == "skip":
        _skipped(claim, error)
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


def _choice(claim: Claim, error: LockNotAcquired) -> str:
    if not isinstance(error, LockContended):
        return claim.options.on_unavailable
    rules = claim.options.rules
    holder = read_owner(error.holder)
    if _awaits_itself(claim, holder) or (error.split and rules.at_publish):
        return "requeue"
    if not rules.at_publish or (rules.own_queue_key and error.key in claim.keys):
        return _choice_at_run(claim, error)
    return _choice_as_duplicate(claim, error, holder)


def _awaits_itself(claim: Claim, holder: Owner | None) -> bool:
    """
    Tell whether the holder is an earlier part of the same work.

    That is this task before its retry, or the task that sent this one: where results are stored
    before the lock is let go, what follows may arrive while it is still held. Neither is a
    conflict; waiting under `apply()` would be for ever.
    """
    if holder is None or holder.role is Role.FINISHED or claim.request.is_eager:
        return False
    if holder.task_id == claim.request.id:
        return True
    return claim.plan.marks_messages and holder.task_id == claim.request.parent_id


def _choice_at_run(claim: Claim, error: LockContended) -> str:
    policy = policy_name(claim.task, claim.options.run_policy, error, RUN)
    if error.split and policy in ("skip", "reject"):
        # Several contenders share the nodes and nobody holds the lock: were each of them to give
        # way to the others, the work would be done by none.
        return "requeue"
    return policy


def _choice_as_duplicate(claim: Claim, error: LockContended, holder: Owner | None) -> str:
    """
    Settle a duplicate that could not be dropped at its publish.

    Somebody may wait for its result, or something is to follow it; or it was sent without a lock.
    """
    if holder is None or not has_all(claim.redlock, claim.published, error):
        return "requeue"  # not a task's lock, or of other work, so nobody is known to do this
    # To replace is for the publisher. One that brought a lock and finds another task's in its
    # place was replaced itself.
    brought = claim.envelope.reservation is not None and holder.role is not Role.FINISHED
    if _has_begun(claim) and not (brought and claim.options.publish_policy == "replace"):
        return "requeue"
    policy = policy_name(claim.task, claim.options.publish_policy, error, PUBLISH)
    if policy == "raise":
        return "duplicate"
    if policy == "existing" or holder.role is Role.FINISHED:
        return "skip"
    return "stand back" if brought else "requeue"


def _has_begun(claim: Claim) -> bool:
    """Tell whether this goes on with work that was begun, and is nobody's duplicate any more."""
    request = claim.request
    return bool(request.retries or request.replaced_task_nesting or claim.may_have_begun)


def _sign(hold: Hold) -> None:
    """Leave the mark for a message that ends without its body, so that no copy of it runs."""
    claim = hold.claim
    if not claim.message:
        return
    try:
        hold.lease = claim.sign()
        hold.settled = True
    except LockContended as twin:
        settle_twin(claim, twin)
    except LockNotAcquired as error:
        logger.warning(
            "Task %s[%s] ends without a mark; another delivery of its message would be taken for "
            "a new one: %s",
            claim.task.name,
            claim.request.id,
            error,
        )


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


def _skipped(claim: Claim, error: LockNotAcquired) -> None:
    task, request = claim.task, claim.request
    logger.info(
        "Task %s[%s] is skipped and ends with lock_skip_result %r: %s",
        task.name,
        request.id,
        claim.options.skip_result,
        error,
    )
    tell(News.SKIPPED, task, request.id, error=error)
    if request.is_eager or not task.send_events:
        return
    try:
        task.send_event(
            SKIPPED_EVENT,
            retry=False,
            name=task.name,
            key=getattr(error, "key", None),
            holder=getattr(error, "holder", None),
        )
    except Exception as exc:
        # An event is news, not work: a broker that cannot take it does not change the outcome.
        logger.warning("The event %s could not be sent: %r", SKIPPED_EVENT, exc)


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
            return claim.take()
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
