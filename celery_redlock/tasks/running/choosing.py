"""
Which policy a task follows whose lock was not taken.

That is `lock_overlap` for a schedule's run, else `lock_on_conflict`; `lock_on_unavailable` where
too few nodes answered.
"""

from __future__ import annotations

from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.tasks.config.policies import PUBLISH, RUN, policy_name
from celery_redlock.tasks.holding.arrival import Claim
from celery_redlock.tasks.messages.owners import Owner, Role, read_owner
from celery_redlock.tasks.messages.periodic import may_be_too_late
from celery_redlock.tasks.messages.places import has_all
from celery_redlock.tasks.running.overlap import overlap_choice
from celery_redlock.tasks.running.twins import is_copy

__all__ = ["choice_of", "ends_here"]


def choice_of(claim: Claim, error: LockNotAcquired) -> str:
    if not isinstance(error, LockContended):
        return claim.options.on_unavailable
    rules = claim.options.rules
    holder = read_owner(error.holder)
    if _awaits_itself(claim, holder) or (error.split and rules.at_publish):
        return "requeue"
    if claim.overlap is not None:
        return overlap_choice(claim, error, holder)
    if not rules.at_publish or (rules.own_queue_key and error.key in claim.keys):
        return _choice_at_run(claim, error)
    return _choice_as_duplicate(claim, error, holder)


def ends_here(claim: Claim, error: LockContended) -> bool:
    """Return whether a message that takes its lock at publish ends for this, so need not wait."""
    at_publish = claim.options.rules.at_publish and claim.overlap is None
    if not at_publish or callable(claim.options.publish_policy) or is_copy(claim, error):
        return False
    if claim.options.rules.own_queue_key and error.key in claim.keys:
        return False  # waiting for a body is not for the publish policy
    return choice_of(claim, error) not in ("requeue", "replace")


def _awaits_itself(claim: Claim, holder: Owner | None) -> bool:
    """
    Tell whether the holder is an earlier part of the same work.

    That is this task before its retry, or the task that sent this one: where results are stored
    before the lock is let go, what follows may arrive while it is still held. Neither is a
    conflict; waiting under `apply()` would be for ever.
    """
    if holder is None or holder.role is Role.FINISHED or claim.request.is_eager:
        return False
    if claim.tick is not None and holder.due_us not in (None, claim.tick.due_us):
        return False  # a schedule may send all its ticks under one id
    if holder.task_id in (claim.request.id, claim.envelope.after):
        return True
    outlasts_body = claim.plan.marks_messages or holder.due_us is not None
    return outlasts_body and holder.task_id == claim.request.parent_id


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
    if may_be_too_late(holder, claim.tick, claim.options):
        return "requeue"
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
    return claim.goes_on or claim.may_have_begun
