"""
Which policy a task follows whose lock was not taken.

That is `lock_overlap` for a schedule's run, else `lock_on_conflict`; `lock_on_unavailable` where
too few nodes answered.
"""

from __future__ import annotations

from dataclasses import replace

from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.tasks.config.policies import PUBLISH, RUN, resolve_policy
from celery_redlock.tasks.message.node_keys import does_same_work
from celery_redlock.tasks.message.owner_label import Role, TaskOwner, parse_owner
from celery_redlock.tasks.message.periodic import holder_may_expire
from celery_redlock.tasks.rules.arrival import Arrival, Conflict, settle
from celery_redlock.tasks.run.lock_request import LockRequest
from celery_redlock.tasks.run.overlap import overlap_action
from celery_redlock.tasks.run.redelivery import is_same_tick

__all__ = ["action_for", "is_final"]


def action_for(lock_request: LockRequest, error: LockNotAcquired) -> str:
    if not isinstance(error, LockContended):
        return lock_request.options.on_unavailable
    mode = lock_request.options.mode_spec
    holder = parse_owner(error.holder)
    if _awaits_itself(lock_request, holder) or (error.split and mode.at_publish):
        return "requeue"
    if lock_request.overlap is not None:
        return overlap_action(lock_request, error, holder)
    if not mode.at_publish or (mode.own_queue_key and error.key in lock_request.keys):
        return _action_at_run(lock_request, error)
    return _action_as_duplicate(lock_request, error, holder)


def is_final(lock_request: LockRequest, error: LockContended) -> bool:
    """Return whether a message that takes its lock at publish ends for this, so need not wait."""
    at_publish = lock_request.options.mode_spec.at_publish and lock_request.overlap is None
    if (
        not at_publish
        or callable(lock_request.options.publish_policy)
        or is_same_tick(lock_request, error)
    ):
        return False
    if lock_request.options.mode_spec.own_queue_key and error.key in lock_request.keys:
        return False  # waiting for a body is not for the publish policy
    return action_for(lock_request, error) not in ("requeue", "replace")


def _awaits_itself(lock_request: LockRequest, holder: TaskOwner | None) -> bool:
    """
    Tell whether the holder is an earlier part of the same work.

    That is this task before its retry, or the task that sent this one: where results are stored
    before the lock is let go, what follows may arrive while it is still held. Neither is a
    conflict; waiting under `apply()` would be for ever.
    """
    if holder is None or holder.role is Role.FINISHED or lock_request.request.is_eager:
        return False
    if lock_request.tick is not None and holder.due_us not in (None, lock_request.tick.due_us):
        return False  # a schedule may send all its ticks under one id
    if holder.is_of(lock_request.request.id) or holder.task_id == lock_request.envelope.after:
        return True
    outlasts_body = lock_request.plan.marks_messages or holder.due_us is not None
    return outlasts_body and holder.is_of(lock_request.request.parent_id)


def _action_at_run(lock_request: LockRequest, error: LockContended) -> str:
    policy = resolve_policy(lock_request.task, lock_request.options.run_policy, error, RUN)
    if error.split and policy in ("skip", "reject"):
        # Several contenders share the nodes and nobody holds the lock: were each of them to give
        # way to the others, the work would be done by none.
        return "requeue"
    return policy


#: What `apply_policy` in `contention` calls the ends of a duplicate.
CHOICES = {
    Arrival.REQUEUE: "requeue",
    Arrival.FAIL: "duplicate",
    Arrival.SKIP: "skip",
    Arrival.STAND_BACK: "superseded",
}


def _action_as_duplicate(
    lock_request: LockRequest, error: LockContended, holder: TaskOwner | None
) -> str:
    """
    Settle a duplicate that could not be dropped at its publish.

    Somebody may wait for its result, or something is to follow it; or it was sent without a lock.
    """
    policy = lock_request.options.publish_policy
    conflict = Conflict(
        is_task=holder is not None,
        role=Role.QUEUED if holder is None else holder.role,
        same_work=does_same_work(
            lock_request.redlock, lock_request.publish_keys, lock_request.task.name, error, holder
        ),
        brought_lock=lock_request.envelope.reservation is not None,
        has_begun=lock_request.is_continuation or lock_request.may_have_begun,
        policy=policy if isinstance(policy, str) else None,
        may_be_skipped=holder is not None
        and holder_may_expire(holder, lock_request.tick, lock_request.options),
    )
    choice = settle(conflict)
    if choice is Arrival.ASK:
        choice = settle(
            replace(conflict, policy=resolve_policy(lock_request.task, policy, error, PUBLISH))
        )
    return CHOICES[choice]
