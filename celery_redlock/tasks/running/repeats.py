"""
A duplicate that had to be sent, when it gets to a worker.
"""

from __future__ import annotations

from celery_redlock.errors import LockContended
from celery_redlock.tasks.config.policies import PUBLISH, policy_name
from celery_redlock.tasks.holding.arrival import Claim
from celery_redlock.tasks.holding.hold import Hold
from celery_redlock.tasks.messages.envelope import Original
from celery_redlock.tasks.messages.owners import read_owner
from celery_redlock.tasks.messages.places import mark_of_digest
from celery_redlock.tasks.rules.arrival import Arrival, Repetition, Sighting, decide, evidence_of
from celery_redlock.tasks.rules.facts import Evidence
from celery_redlock.tasks.running.latecomers import raise_duplicate
from celery_redlock.tasks.running.skips import sign, skip

__all__ = ["is_repeated"]


def is_repeated(hold: Hold) -> bool:
    """
    Return whether a message is to be skipped, because the call that it repeats does the work.

    Raises:
        DuplicateTask: by policy, instead.
        LockContended: nobody can tell now (`split`).
        QuorumUnavailable: too few nodes answered.
    """
    claim = hold.claim
    original = claim.envelope.duplicate_of
    if original is None or not claim.published or claim.goes_on or claim.may_have_begun:
        return False
    shown = _shown_of(claim, original)
    evidence = evidence_of([sighting for sighting, _ in shown], len(claim.redlock.node_names))
    holder = next((owner for _, owner in shown if owner is not None), None)
    error = _error(claim, original, holder, split=evidence is Evidence.UNCLEAR)
    policy = claim.options.publish_policy
    choice = decide(Repetition(evidence, policy if isinstance(policy, str) else None))
    if choice is Arrival.ASK:
        choice = decide(Repetition(evidence, policy_name(claim.task, policy, error, PUBLISH)))
    if choice is Arrival.TAKE:
        return False
    if choice is Arrival.REQUEUE:
        raise error
    sign(hold)
    if choice is Arrival.FAIL:
        raise_duplicate(claim, error)
    skip(claim, error)
    return True


def _shown_of(claim: Claim, original: Original) -> list[tuple[Sighting, str | None]]:
    """Return what each node shows of a call, and the owner value by which it does."""
    shown = []
    places = (mark_of_digest(original.mark), *claim.published)
    for mark, *keys in claim.redlock.reservations.owners_by_node(places):
        marked = read_owner(mark)
        owners = {value: read_owner(value) for value in keys}
        own = [value for value, at in owners.items() if at and at.task_id == original.task_id]
        roles = [at.role for value, at in owners.items() if at and value in own]
        sighting = Sighting(
            mark=None if marked is None else marked.role,
            key=min(roles, key=lambda role: role.is_over, default=None),
        )
        shown.append((sighting, own[0] if own else mark))
    return shown


def _error(claim: Claim, original: Original, holder: str | None, *, split: bool) -> LockContended:
    keys = list(claim.keys)
    return LockContended(
        f"Task {claim.task.name}[{claim.request.id}] repeats {original.task_id}, which had the "
        f"lock {keys[0]!r} when this one was sent.",
        keys[0],
        holder,
        None,
        split,
        keys,
    )
