"""
A duplicate that had to be sent, when it gets to a worker.
"""

from __future__ import annotations

from celery_redlock.errors import LockContended
from celery_redlock.tasks.config.policies import PUBLISH, resolve_policy
from celery_redlock.tasks.message.envelope import Original
from celery_redlock.tasks.message.node_keys import dedupe_key_of
from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.tasks.rules.arrival import Arrival, Repetition, Sighting, decide, evidence_of
from celery_redlock.tasks.rules.facts import Evidence
from celery_redlock.tasks.run.lock_request import LockRequest
from celery_redlock.tasks.run.running_lock import RunningLock
from celery_redlock.tasks.run.skip import leave_marker, skip
from celery_redlock.tasks.run.superseded import fail_as_duplicate

__all__ = ["skip_if_duplicate"]


def skip_if_duplicate(running_lock: RunningLock) -> bool:
    """
    Return whether a message is to be skipped, because the call that it repeats does the work.

    Raises:
        DuplicateTask: by policy, instead.
        LockContended: nobody can tell now (`split`).
        QuorumUnavailable: too few nodes answered.
    """
    lock_request = running_lock.lock_request
    original = lock_request.envelope.duplicate_of
    if (
        original is None
        or not lock_request.publish_keys
        or lock_request.is_continuation
        or lock_request.may_have_begun
    ):
        return False
    shown = _sightings_of(lock_request, original)
    evidence = evidence_of(
        [sighting for sighting, _ in shown], len(lock_request.redlock.node_names)
    )
    holder = next((owner for _, owner in shown if owner is not None), None)
    error = _error(lock_request, original, holder, split=evidence is Evidence.UNCLEAR)
    policy = lock_request.options.publish_policy
    choice = decide(Repetition(evidence, policy if isinstance(policy, str) else None))
    if choice is Arrival.ASK:
        choice = decide(
            Repetition(evidence, resolve_policy(lock_request.task, policy, error, PUBLISH))
        )
    if choice is Arrival.TAKE:
        return False
    if choice is Arrival.REQUEUE:
        raise error
    leave_marker(running_lock)
    if choice is Arrival.FAIL:
        fail_as_duplicate(lock_request, error)
    skip(lock_request, error)
    return True


def _sightings_of(
    lock_request: LockRequest, original: Original
) -> list[tuple[Sighting, str | None]]:
    """Return what each node shows of a call, and the owner value by which it does."""
    shown = []
    node_keys = (dedupe_key_of(original.marker), *lock_request.publish_keys)
    for mark, *keys in lock_request.redlock.reservations.owners_by_node(node_keys):
        marked = parse_owner(mark)
        owners = {value: parse_owner(value) for value in keys}
        own = [value for value, at in owners.items() if at and at.task_id == original.task_id]
        roles = [at.role for value, at in owners.items() if at and value in own]
        sighting = Sighting(
            mark=None if marked is None else marked.role,
            key=min(roles, key=lambda role: role.is_over, default=None),
        )
        shown.append((sighting, own[0] if own else mark))
    return shown


def _error(
    lock_request: LockRequest, original: Original, holder: str | None, *, split: bool
) -> LockContended:
    keys = list(lock_request.keys)
    return LockContended(
        f"Task {lock_request.task.name}[{lock_request.request.id}] repeats {original.task_id}, "
        f"which had the lock {keys[0]!r} when this one was sent.",
        keys[0],
        holder,
        None,
        split,
        keys,
    )
