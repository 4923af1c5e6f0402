"""
The facts about a message that a worker received, in the terms of the rules.
"""

from __future__ import annotations

from celery.exceptions import Ignore, Reject, Retry

from celery_redlock.core.failures import Refusal
from celery_redlock.protocol.keys import GOES_FIRST, owner_timestamp_us, places_of
from celery_redlock.tasks.message.expiry import PUBLISH_GRACE, holder_may_expire
from celery_redlock.tasks.message.node_keys import dedupe_key_of, does_same_work
from celery_redlock.tasks.message.owner_label import TaskOwner, parse_owner
from celery_redlock.tasks.rules.arrival import (
    Action,
    Arrival,
    Contention,
    InPlace,
    Sighting,
    Waiting,
    is_final,
    on_contention,
)
from celery_redlock.tasks.rules.facts import (
    ConflictPolicy,
    DuplicatePolicy,
    Evidence,
    Holder,
    Obstacle,
    Order,
    Raised,
    Record,
    Role,
    Unavailable,
)
from celery_redlock.tasks.run.lock_request import (
    SHORT_BODY,
    TURN_IN_PLACE,
    WAIT_IN_PLACE,
    LockRequest,
)
from celery_redlock.tasks.run.requeue import remaining_wait
from celery_redlock.tasks.run.shown_end import Requeued, Withdrawn, Yielded

#: A message with this many others before it gets no turn while it may wait in its process.
MOST_BEFORE = 10


def arrival_of(lock_request: LockRequest, now: float) -> Arrival:
    """Return the facts of a message before it acquires anything, and before a node is asked."""
    tick, envelope = lock_request.tick, lock_request.envelope
    deadline = lock_request.options.starting_deadline
    return Arrival(
        missed_deadline=tick is not None and deadline is not None and now > tick.due + deadline,
        continues=lock_request.is_continuation,
        may_have_begun=lock_request.may_have_begun,
        names_original=envelope.duplicate_of is not None and bool(lock_request.publish_keys),
        evidence=Evidence.UNREAD,
        policy=DuplicatePolicy.of(lock_request.options.on_duplicate),
        from_leader=tick is not None and tick.token is not None and bool(tick.schedule),
        brought_lock=lock_request.options.mode_spec.at_publish and envelope.reservation is not None,
        record=Record.UNREAD,
    )


def contention_of(
    lock_request: LockRequest,
    refusal: Refusal | None,
    *,
    has_retaken: bool = False,
    has_taken_over: bool = False,
) -> Contention:
    """
    Return the facts of a message that did not get its lock and marker.

    Args:
        lock_request: what it takes.
        refusal: why the nodes refused it; None: no quorum replied.
        has_retaken: it has evicted a marker that did not concern it.
        has_taken_over: it was ending as replaced or revoked, and did not get its marker for that.
    """
    options, task, request = lock_request.options, lock_request.task, lock_request.request
    owner = None if refusal is None else parse_owner(refusal.holder)
    keys, mode = lock_request.publish_keys, options.mode_spec
    may_be_rejected = bool(task.acks_late) and not request.is_eager and not is_in_chord(request)
    return Contention(
        obstacle=_obstacle(lock_request, refusal),
        split=refusal is not None and refusal.split,
        holder=_holder(lock_request, refusal, owner),
        role=Role.QUEUED if owner is None else owner.role,
        order=Order.UNKNOWN if owner is None else _order(lock_request, owner),
        same_work=refusal is not None and does_same_work(keys, task.name, refusal, owner),
        same_message=owner is not None
        and owner.is_of(request.id)
        # The messages of several leaders for one tick have one task id, and each its own nonce.
        and owner.nonce == lock_request.envelope.nonce,
        holds_until_result=lock_request.marks_messages
        or (owner is not None and (owner.due_us is not None or owner.marker is not None)),
        holder_may_be_skipped=owner is not None
        and holder_may_expire(owner, lock_request.tick, options),
        holder_is_newer=refusal is not None
        and owner is not None
        and _is_newer_call(lock_request, refusal, owner),
        locks_at_publish=mode.at_publish,
        for_window=mode.for_window,
        brought_lock=lock_request.envelope.reservation is not None,
        continues=lock_request.is_continuation,
        may_have_begun=lock_request.may_have_begun,
        has_retaken=has_retaken,
        has_taken_over=has_taken_over,
        may_be_rejected=may_be_rejected,
        at_publish=DuplicatePolicy.of(options.on_duplicate),
        at_run=ConflictPolicy.of(options.on_conflict),
        unavailable=Unavailable(options.on_unavailable),
        eager=bool(request.is_eager),
    )


def in_place_of(lock_request: LockRequest, refusal: Refusal, contention: Contention) -> InPlace:
    """Return the facts of a message that may wait in its process."""
    action = on_contention(contention)
    taken_us = owner_timestamp_us(refusal.holder or "")
    now_us = lock_request.client.transport.wall_us()
    if refusal.frees_later:
        is_held_long = not refusal.split and (refusal.expires_in or 0.0) > TURN_IN_PLACE
    else:
        held_for = 0.0 if taken_us is None else (now_us - taken_us) / 1_000_000
        # Each waiter before this one may have the key for as long as the holder has had it.
        is_held_long = held_for > min(SHORT_BODY, WAIT_IN_PLACE / (refusal.before + 1))
    return InPlace(
        is_final=is_final(contention),
        is_requeued=action is Action.WAIT,
        is_newer=action in (Action.REQUEST_STOP, Action.OVERTAKE),
        eager=contention.eager,
        wait_is_set=lock_request.options.wait is not None,
        goes_later=(refusal.holder or "").startswith(GOES_FIRST),
        is_far_behind=refusal.before >= MOST_BEFORE,
        is_held_long=is_held_long,
    )


def waiting_of(lock_request: LockRequest, *, is_refused: bool, is_registered: bool) -> Waiting:
    """
    Return the facts of a message that needs its lock later.

    Args:
        lock_request: what it takes.
        is_refused: another task has a key that it has just tried to acquire.
        is_registered: it has asked the nodes that refuse it to remember it.
    """
    eager = bool(lock_request.request.is_eager)
    is_registered = is_registered or lock_request.is_registered
    return Waiting(
        eager=eager,
        # A message that nodes remember comes back once more, so that they forget it.
        is_exhausted=not (eager or is_registered) and remaining_wait(lock_request) <= 0,
        is_refused=is_refused,
        is_registered=is_registered,
    )


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
    node_keys = (dedupe_key_of(original.marker), *places_of(lock_request.publish_keys))
    for marker, *keys in lock_request.client.owners_by_node(node_keys):
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
        (Withdrawn, Raised.EXCEPTION),  # Celery ignores it, but its message comes no more
        (Requeued, Raised.RETRY),
        (Yielded, Raised.YIELDED),
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


def _obstacle(lock_request: LockRequest, refusal: Refusal | None) -> Obstacle:
    mode = lock_request.options.mode_spec
    if refusal is None:
        return Obstacle.NO_QUORUM
    if refusal.key is not None and refusal.key.stored == lock_request.dedupe_key:
        return Obstacle.MARKER
    if not mode.at_publish or (mode.own_queue_key and refusal.key in lock_request.keys):
        return Obstacle.LOCK
    return Obstacle.RESERVED


def _holder(lock_request: LockRequest, refusal: Refusal | None, owner: TaskOwner | None) -> Holder:
    if refusal is not None and refusal.is_paused:
        return Holder.PAUSE
    if owner is None or refusal is None:
        return Holder.FOREIGN
    request, tick = lock_request.request, lock_request.tick
    is_copy = lock_request.tick_id is not None and owner.tick_id == lock_request.tick_id
    if is_copy and owner.role is Role.QUEUED and not refusal.split:
        return Holder.COPY
    if tick is not None and owner.due_us not in (None, tick.due_us):
        return Holder.OTHER  # a schedule may send all its ticks under one id
    if owner.is_of(request.id):
        return Holder.ITSELF
    if owner.task_id == lock_request.envelope.after:
        return Holder.PREDECESSOR
    return Holder.SENDER if owner.is_of(request.parent_id) else Holder.OTHER


def _is_newer_call(lock_request: LockRequest, refusal: Refusal, owner: TaskOwner) -> bool:
    """
    Return whether the holder is a debounced call that was made after the message's call.

    Not by `_order`: in a burst each call replaces those before it, also the call of a tick that was
    due long ago. A worker's order has to be that of the publishers, by when the calls were made.
    """
    sent = lock_request.envelope.sent
    if sent is None or owner.burst_us is None or owner.role is not Role.QUEUED:
        return False
    if refusal.split or lock_request.is_continuation:
        return False
    # A reservation that ends so soon may be that of a publisher that dies before it sends.
    is_out = (refusal.expires_in or 0.0) > PUBLISH_GRACE
    same = does_same_work(lock_request.publish_keys, lock_request.task.name, refusal, owner)
    return is_out and same and owner.since > sent * 1_000_000


def _order(lock_request: LockRequest, owner: TaskOwner) -> Order:
    mine, theirs = lock_request.age_us, owner.age_us
    if theirs < mine:
        return Order.OLDER
    # The time at which it took the key is later than the time at which it was sent.
    is_known = owner.due_us is not None or owner.sent_us is not None
    return Order.NEWER if theirs > mine and is_known else Order.UNKNOWN
