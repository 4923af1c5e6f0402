"""
The facts about a message that a worker received, in the terms of the rules.
"""

from __future__ import annotations

from celery.exceptions import Ignore, Reject, Retry

from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.protocol import owner_timestamp_us
from celery_redlock.protocol.keys import GOES_FIRST, all_places, is_rate
from celery_redlock.tasks.config.policies import PUBLISH, RUN, resolve_policy
from celery_redlock.tasks.message.node_keys import dedupe_key_of, does_same_work
from celery_redlock.tasks.message.owner_label import TaskOwner, parse_owner
from celery_redlock.tasks.message.periodic import holder_may_expire
from celery_redlock.tasks.rules.arrival import (
    Action,
    Arrival,
    Contention,
    InPlace,
    Sighting,
    is_final,
    on_contention,
)
from celery_redlock.tasks.rules.facts import (
    Evidence,
    Holder,
    Obstacle,
    Order,
    Overlap,
    PublishPolicy,
    Raised,
    Record,
    Role,
    RunPolicy,
    Unavailable,
)
from celery_redlock.tasks.run.lock_request import IN_PLACE, SHORT_BODY, TURN_IN_PLACE, LockRequest
from celery_redlock.tasks.run.shown_end import Requeued

__all__ = ["arrival_of", "at_publish_policy", "at_run_policy", "contention_of", "is_in_chord"]
__all__ += ["in_place_of", "raised_by", "sightings_of"]

#: One that so many others go before has no turn while it may wait in its process.
MOST_BEFORE = 10

_OVERLAPS = tuple(overlap.value for overlap in Overlap)


def arrival_of(lock_request: LockRequest, now: float) -> Arrival:
    """Return what is known of a message before it takes anything, and before a node is asked."""
    tick, envelope = lock_request.tick, lock_request.envelope
    deadline = lock_request.options.starting_deadline
    policy = lock_request.options.publish_policy
    return Arrival(
        missed_deadline=tick is not None and deadline is not None and now > tick.due + deadline,
        continues=lock_request.is_continuation,
        may_have_begun=lock_request.may_have_begun,
        names_original=envelope.duplicate_of is not None and bool(lock_request.publish_keys),
        evidence=Evidence.UNREAD,
        policy=PublishPolicy.FUNCTION if callable(policy) else PublishPolicy(policy),
        from_leader=tick is not None and tick.token is not None and bool(tick.schedule),
        brought_lock=lock_request.options.mode_spec.at_publish and envelope.reservation is not None,
        record=Record.UNREAD,
    )


def contention_of(
    lock_request: LockRequest,
    error: LockNotAcquired,
    *,
    has_retaken: bool = False,
    has_taken_over: bool = False,
) -> Contention:
    """
    Return what is known of a message that did not get what it takes.

    Args:
        lock_request: what it takes.
        error: why it did not get that.
        has_retaken: it has evicted a marker that did not concern it.
        has_taken_over: it was ending as replaced or revoked, and did not get its marker for that.
    """
    options, task, request = lock_request.options, lock_request.task, lock_request.request
    contended = error if isinstance(error, LockContended) else None
    owner = None if contended is None else parse_owner(contended.holder)
    keys, mode = lock_request.publish_keys, options.mode_spec
    at_publish, at_run = options.publish_policy, options.run_policy
    # A run that may overlap others takes no key that could be held.
    overlap = Overlap(lock_request.overlap) if lock_request.overlap in _OVERLAPS else Overlap.NONE
    may_be_rejected = bool(task.acks_late) and not request.is_eager and not is_in_chord(request)
    return Contention(
        obstacle=_obstacle(lock_request, contended),
        split=contended is not None and contended.split,
        holder=_holder(lock_request, contended, owner),
        role=Role.QUEUED if owner is None else owner.role,
        order=Order.UNKNOWN if owner is None else _order(lock_request, owner),
        same_work=contended is not None
        and does_same_work(lock_request.redlock, keys, task.name, contended, owner),
        same_message=owner is not None
        and owner.is_of(request.id)
        # The messages of several leaders for one tick have one task id, and each its own nonce.
        and owner.nonce == lock_request.envelope.nonce,
        holds_until_result=lock_request.plan.marks_messages
        or (owner is not None and (owner.due_us is not None or owner.marker is not None)),
        holder_may_be_skipped=owner is not None
        and holder_may_expire(owner, lock_request.tick, options),
        locks_at_publish=mode.at_publish,
        for_window=mode.for_window,
        brought_lock=lock_request.envelope.reservation is not None,
        continues=lock_request.is_continuation,
        may_have_begun=lock_request.may_have_begun,
        has_retaken=has_retaken,
        has_taken_over=has_taken_over,
        may_be_rejected=may_be_rejected,
        overlap=overlap,
        at_publish=PublishPolicy.FUNCTION if callable(at_publish) else PublishPolicy(at_publish),
        at_run=RunPolicy.FUNCTION if callable(at_run) else RunPolicy(at_run),
        unavailable=Unavailable(options.on_unavailable),
        eager=bool(request.is_eager),
    )


def in_place_of(lock_request: LockRequest, error: LockContended) -> InPlace:
    """Return what is known of a message that may wait in its process."""
    contention, options = contention_of(lock_request, error), lock_request.options
    taken_us = owner_timestamp_us(error.holder or "")
    now_us = lock_request.redlock.transport.wall_us()
    if is_rate(error.key):
        is_held_long = not error.split and (error.expires_in or 0.0) > TURN_IN_PLACE
    else:
        held_for = 0.0 if taken_us is None else (now_us - taken_us) / 1_000_000
        # Each of those before us may have it for as long as the holder has had it already.
        is_held_long = held_for > min(SHORT_BODY, IN_PLACE / (error.before + 1))
    return InPlace(
        is_final=is_final(contention),
        is_requeued=on_contention(contention) is Action.WAIT,
        eager=contention.eager,
        wait_is_set=options.wait is not None,
        goes_later=(error.holder or "").startswith(GOES_FIRST),
        is_far_behind=error.before >= MOST_BEFORE,
        is_held_long=is_held_long,
    )


def at_publish_policy(lock_request: LockRequest, error: LockContended) -> PublishPolicy:
    """Call the task's function, and return what it answers."""
    policy = lock_request.options.publish_policy
    return PublishPolicy(resolve_policy(lock_request.task, policy, error, PUBLISH))


def at_run_policy(lock_request: LockRequest, error: LockContended) -> RunPolicy:
    """As `at_publish_policy`, for a lock that the worker takes."""
    policy = lock_request.options.run_policy
    return RunPolicy(resolve_policy(lock_request.task, policy, error, RUN))


def sightings_of(lock_request: LockRequest) -> list[tuple[Sighting, str | None]]:
    """
    Ask the nodes about the call that a message repeats.

    Returns:
        Each node's view, and the owner value that shows it.

    Raises:
        QuorumUnavailable: too few nodes replied.
    """
    original = lock_request.envelope.duplicate_of
    if original is None:
        return []
    shown = []
    node_keys = (dedupe_key_of(original.marker), *all_places(lock_request.publish_keys))
    for marker, *keys in lock_request.redlock.reservations.owners_by_node(node_keys):
        marked = parse_owner(marker)
        owners = {value: parse_owner(value) for value in keys}
        own = [value for value, at in owners.items() if at and at.task_id == original.task_id]
        roles = [at.role for value, at in owners.items() if at and value in own]
        sighting = Sighting(
            marker=None if marked is None else marked.role,
            key=min(roles, key=lambda role: role.is_over, default=None),
        )
        shown.append((sighting, own[0] if own else marker))
    return shown


def raised_by(error: BaseException | None) -> Raised:
    """Return what an exception means for the message of its request."""
    if error is None:
        return Raised.NOTHING
    if isinstance(error, Reject):
        return Raised.REJECT_TO_QUEUE if error.requeue else Raised.REJECT
    for kind, raised in (
        (Requeued, Raised.RETRY),
        (Retry, Raised.RETRY),
        (Ignore, Raised.IGNORE),
    ):
        if isinstance(error, kind):
            return raised
    return Raised.EXCEPTION if isinstance(error, Exception) else Raised.PROCESS_END


def is_in_chord(request: object) -> bool:
    """Return whether a chord counts the request, or one of the steps after it."""
    if getattr(request, "chord", None):
        return True
    steps = getattr(request, "chain", None) or ()
    return any((step.get("options") or {}).get("chord") for step in steps)


def _obstacle(lock_request: LockRequest, error: LockContended | None) -> Obstacle:
    mode = lock_request.options.mode_spec
    if error is None:
        return Obstacle.NO_QUORUM
    if lock_request.dedupe_key and error.key == lock_request.dedupe_key:
        return Obstacle.MARKER
    if not mode.at_publish or (mode.own_queue_key and error.key in lock_request.keys):
        return Obstacle.LOCK
    return Obstacle.RESERVED


def _holder(
    lock_request: LockRequest, error: LockContended | None, owner: TaskOwner | None
) -> Holder:
    if owner is None or error is None:
        return Holder.FOREIGN
    request, tick = lock_request.request, lock_request.tick
    is_copy = lock_request.tick_id is not None and owner.tick_id == lock_request.tick_id
    if is_copy and owner.role is Role.QUEUED and not error.split:
        return Holder.COPY
    if tick is not None and owner.due_us not in (None, tick.due_us):
        return Holder.OTHER  # a schedule may send all its ticks under one id
    if owner.is_of(request.id):
        return Holder.ITSELF
    if owner.task_id == lock_request.envelope.after:
        return Holder.PREDECESSOR
    return Holder.SENDER if owner.is_of(request.parent_id) else Holder.OTHER


def _order(lock_request: LockRequest, owner: TaskOwner) -> Order:
    """Return the holder's age: by due times, or else by when it took the key."""
    tick, history = lock_request.tick, lock_request.envelope.wait_history
    if tick is not None and owner.due_us is not None and owner.due_us > tick.due_us:
        return Order.NEWER
    if tick is not None:
        mine = tick.due_us
    else:
        first_seen = lock_request.started if history is None else history.first_seen
        mine = round(first_seen * 1_000_000)
    theirs = owner.since if owner.due_us is None else owner.due_us
    return Order.OLDER if theirs < mine else Order.UNKNOWN
