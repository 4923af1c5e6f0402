"""
Which policy a task follows whose lock was not taken.

That is `lock_overlap` for a schedule's run, else `lock_on_conflict`; `lock_on_unavailable` where
too few nodes answered.
"""

from __future__ import annotations

from dataclasses import replace

from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.tasks.config.policies import PUBLISH, RUN, policy_name
from celery_redlock.tasks.holding.arrival import Claim
from celery_redlock.tasks.messages.owners import Owner, Role, read_owner
from celery_redlock.tasks.messages.periodic import may_be_too_late
from celery_redlock.tasks.messages.places import does_same_work
from celery_redlock.tasks.rules.arrival import Arrival, Conflict, settle
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
    if holder.is_of(claim.request.id) or holder.task_id == claim.envelope.after:
        return True
    outlasts_body = claim.plan.marks_messages or holder.due_us is not None
    return outlasts_body and holder.is_of(claim.request.parent_id)


def _choice_at_run(claim: Claim, error: LockContended) -> str:
    policy = policy_name(claim.task, claim.options.run_policy, error, RUN)
    if error.split and policy in ("skip", "reject"):
        # Several contenders share the nodes and nobody holds the lock: were each of them to give
        # way to the others, the work would be done by none.
        return "requeue"
    return policy


#: What `settle` in `conflict` calls the ends of a duplicate.
CHOICES = {
    Arrival.REQUEUE: "requeue",
    Arrival.FAIL: "duplicate",
    Arrival.SKIP: "skip",
    Arrival.STAND_BACK: "stand back",
}


def _choice_as_duplicate(claim: Claim, error: LockContended, holder: Owner | None) -> str:
    """
    Settle a duplicate that could not be dropped at its publish.

    Somebody may wait for its result, or something is to follow it; or it was sent without a lock.
    """
    policy = claim.options.publish_policy
    conflict = Conflict(
        is_task=holder is not None,
        role=Role.QUEUED if holder is None else holder.role,
        same_work=does_same_work(claim.redlock, claim.published, claim.task.name, error, holder),
        brought_lock=claim.envelope.reservation is not None,
        has_begun=claim.goes_on or claim.may_have_begun,
        policy=policy if isinstance(policy, str) else None,
        may_be_skipped=holder is not None and may_be_too_late(holder, claim.tick, claim.options),
    )
    choice = settle(conflict)
    if choice is Arrival.ASK:
        choice = settle(replace(conflict, policy=policy_name(claim.task, policy, error, PUBLISH)))
    return CHOICES[choice]
