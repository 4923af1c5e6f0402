"""
Decisions about a message that a worker received: it takes its lock, waits, is requeued, or ends.

`ARRIVALS` decides before the message acquires anything, `CONTENTION` when it did not get its lock
and marker, and `REQUEUES` and `IN_PLACE` decide how it waits. A duplicate that had to be sent is
judged by the call that it repeats, not by the holder of the key when the worker looks. Any other
message is judged by the holder of the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from celery_redlock.tasks.rules.facts import (
    ConflictPolicy,
    DuplicatePolicy,
    Evidence,
    Holder,
    Need,
    Obstacle,
    Order,
    Record,
    Role,
    Row,
    Unavailable,
    first_match,
)


class Action(Enum):
    """The worker's next step with the message."""

    TAKE = auto()  #: take its lock and marker
    RETAKE = auto()  #: evict the marker, which is not this message's; take lock and marker anew
    WAIT = auto()  #: get its lock later; the table for that decides how it waits
    TRY_BY_NAME = auto()  #: try once more; nodes that refuse it remember it; then decide anew
    REQUEUE = auto()  #: publish it again, for later
    WAIT_IN_PLACE = auto()  #: wait in the process: `apply()` has no queue
    REQUEUE_COPY = auto()  #: requeue it until another delivery, or message of its tick, ends
    REQUEST_STOP = auto()  #: be the next to run, ask the older call to stop, and requeue
    OVERTAKE = auto()  #: be the next instead of an older call that waits, and try for the lock
    RUN_UNLOCKED = auto()
    SKIP = auto()  #: end it with `lock_skip_result`
    SKIP_AS_MISSED = auto()  #: skip it: the starting deadline of its tick has passed
    FAIL = auto()  #: raise the error of the failed acquire
    FAIL_NOT_REJECTED = auto()  #: fail it: the policy is to reject it, which is not safe
    FAIL_AS_DUPLICATE = auto()  #: raise `DuplicateTask`
    GIVE_UP = auto()  #: raise `LockNotAcquired`: `lock_give_up_after` is over
    REJECT = auto()  #: reject it, so that the broker dead-letters it
    IGNORE = auto()  #: end it without a result: another delivery, or message of its tick, has ended
    DROP_AS_SUPERSEDED = auto()  #: drop it: a newer leader sends its tick
    END_AS_REPLACED = auto()  #: end it as revoked, because a newer call replaces it
    END_AS_REVOKED = auto()  #: end it as revoked


#: The marker of a message that has ended without its body; while it is being ended, workers requeue
#: its other deliveries. A tick's marker is *skipped* instead of all these (`ending.MARKERS`).
MARKED_AS: Mapping[Action, Role] = {
    Action.SKIP: Role.FINISHED,
    Action.SKIP_AS_MISSED: Role.FINISHED,
    Action.FAIL: Role.FAILED,
    Action.FAIL_NOT_REJECTED: Role.FAILED,
    Action.FAIL_AS_DUPLICATE: Role.FINISHED,
    Action.GIVE_UP: Role.FAILED,
    Action.END_AS_REPLACED: Role.FINISHED,
    Action.END_AS_REVOKED: Role.FAILED,  # no task does its work
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """
    The facts of a message before it takes anything.

    Attributes:
        missed_deadline: it is for a tick whose starting deadline has passed.
        continues: it continues work that has begun: a retry, or a replacement.
        may_have_begun: a worker may have been lost in its body, or its body may run.
        names_original: it had to be sent although it repeats a call, which it names.
        evidence: what the nodes show of that call.
        policy: `lock_on_duplicate`.
        from_leader: it is for a tick, and from a beat that records its ticks.
        brought_lock: it was sent with its lock, and others may have given way to it.
        record: what the leaders' record shows.
    """

    missed_deadline: bool
    continues: bool
    may_have_begun: bool
    names_original: bool
    evidence: Evidence
    policy: DuplicatePolicy
    from_leader: bool
    brought_lock: bool
    record: Record

    @property
    def is_duplicate(self) -> bool:
        """Whether it repeats another call; work that has begun is no duplicate any more."""
        return self.names_original and not self.continues and not self.may_have_begun

    @property
    def first_counts(self) -> bool:
        """Whether it repeats a call that does or did the work."""
        return self.is_duplicate and self.evidence in (Evidence.UNDER_WAY, Evidence.FINISHED)

    @property
    def may_be_superseded(self) -> bool:
        """Whether a newer leader than its sender may send its tick."""
        return self.from_leader and not self.continues and not self.brought_lock


ARRIVALS: tuple[Row[Arrival, Action | Need], ...] = (
    Row(
        "its starting deadline has passed",
        lambda a: a.missed_deadline and not a.continues and not a.may_have_begun,
        Action.SKIP_AS_MISSED,
    ),
    Row(
        "it repeats a call",
        lambda a: a.is_duplicate and a.evidence is Evidence.UNREAD,
        Need.EVIDENCE,
    ),
    Row(
        "the outcome of the first call is unknown",
        lambda a: a.is_duplicate and a.evidence is Evidence.UNCLEAR,
        Action.WAIT,
    ),
    Row(
        "a newer call does the work of the first",
        lambda a: a.is_duplicate and a.evidence is Evidence.REPLACED,
        Action.SKIP,
    ),
    Row(
        "the first call counts, and the policy is a function",
        lambda a: a.first_counts and a.policy is DuplicatePolicy.FUNCTION,
        Need.POLICY,
    ),
    Row(
        "the first call counts: raise",
        lambda a: a.first_counts and a.policy is DuplicatePolicy.RAISE,
        Action.FAIL_AS_DUPLICATE,
    ),
    Row(
        "the first call counts: existing",
        lambda a: a.first_counts and a.policy is DuplicatePolicy.EXISTING,
        Action.SKIP,
    ),
    Row(
        "a leader sent it",
        lambda a: a.may_be_superseded and a.record is Record.UNREAD,
        Need.RECORD,
    ),
    Row(
        "a newer leader sends its tick",
        lambda a: a.may_be_superseded and a.record is Record.SUPERSEDED,
        Action.DROP_AS_SUPERSEDED,
    ),
    Row("nothing keeps it from taking its lock", lambda _: True, Action.TAKE),
)


def on_arrival(arrival: Arrival) -> Action | Need:
    """Return the next step for a message that has not acquired anything."""
    return first_match(ARRIVALS, arrival).then


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """
    The facts of a message that did not get its lock and marker.

    Attributes:
        obstacle: why it did not get them.
        split: several contenders share the nodes, and none has a quorum.
        holder: the holder of the key.
        role: the state of the holder's task.
        order: the age of the holder's call.
        same_work: the holder's call is of the same task and has all keys, not only some.
        same_message: the marker is that of this very message, not of another one of its tick.
        holds_until_result: the holder keeps its lock until its result is stored and its successors
            are sent, so that a successor may find the lock held.
        holder_may_be_skipped: the holder is an earlier tick that may miss its starting deadline.
        holder_is_newer: the holder is a newer call of the same burst, and its message is out.
        locks_at_publish: its mode takes a lock at publish.
        for_window: its mode keeps the key taken for `lock_window`.
        brought_lock: it was sent with its lock.
        continues: it continues work that has begun: a retry, or a replacement.
        may_have_begun: a worker may have been lost in its body, or its body may run.
        has_retaken: it has evicted a marker that did not concern it.
        has_taken_over: it was ending as replaced or revoked, and did not get its marker for that.
        may_be_rejected: its rejection loses nothing that another program waits for.
        at_publish: `lock_on_duplicate`.
        at_run: `lock_on_conflict`.
        unavailable: `lock_on_unavailable`.
        eager: it runs under `apply()`.
    """

    obstacle: Obstacle
    split: bool
    holder: Holder
    role: Role
    order: Order
    same_work: bool
    same_message: bool
    holds_until_result: bool
    holder_may_be_skipped: bool
    holder_is_newer: bool
    locks_at_publish: bool
    for_window: bool
    brought_lock: bool
    continues: bool
    may_have_begun: bool
    has_retaken: bool
    has_taken_over: bool
    may_be_rejected: bool
    at_publish: DuplicatePolicy
    at_run: ConflictPolicy
    unavailable: Unavailable
    eager: bool

    @property
    def holder_is_earlier_part(self) -> bool:
        """
        Whether the holder is an earlier part of the same work, which releases the key in time.

        Never under `apply()`, where the message would block that part, and so wait for itself.
        """
        if self.role is Role.FINISHED or self.eager:
            return False
        if self.holder is Holder.SENDER:
            return self.holds_until_result
        return self.holder in (Holder.ITSELF, Holder.PREDECESSOR)

    @property
    def was_replaced(self) -> bool:
        """Whether another call has taken over the lock that the message brought."""
        return self.brought_lock and self.role is not Role.FINISHED

    @property
    def stops(self) -> bool:
        """Whether the newest call of its task wins a lock that the worker takes."""
        return self.obstacle is Obstacle.LOCK and self.at_run is ConflictPolicy.STOP

    @property
    def replaces(self) -> bool:
        """Whether a newer call replaces one whose message waits."""
        return self.at_publish is DuplicatePolicy.REPLACE

    @property
    def others_gave_way(self) -> bool:
        """Whether newer calls may have been dropped for the message, which has their key."""
        return self.locks_at_publish and self.brought_lock and not self.replaces

    @property
    def is_next(self) -> bool:
        """Whether an earlier delivery of it, or of its tick, has asked an older call to stop."""
        is_lock = self.obstacle is Obstacle.LOCK and not self.split
        may_stop = is_lock and self.at_run in (ConflictPolicy.STOP, ConflictPolicy.FUNCTION)
        is_queued = self.holder in (Holder.ITSELF, Holder.COPY) and self.role is Role.QUEUED
        # A newer one may have been sent under its id.
        return may_stop and is_queued and self.same_work and self.order is not Order.NEWER

    @property
    def has_begun(self) -> bool:
        """Whether it continues work that has begun, so that it is no duplicate."""
        return self.continues or self.may_have_begun


_NO_QUORUM, _MARKER, _RESERVED, _LOCK = (
    Obstacle.NO_QUORUM,
    Obstacle.MARKER,
    Obstacle.RESERVED,
    Obstacle.LOCK,
)

CONTENTION: tuple[Row[Contention, Action | Need], ...] = (
    # Too few nodes replied: `lock_on_unavailable`.
    Row(
        "no quorum: run_unlocked",
        lambda c: c.obstacle is _NO_QUORUM and c.unavailable is Unavailable.RUN_UNLOCKED,
        Action.RUN_UNLOCKED,
    ),
    Row(
        "no quorum: raise",
        lambda c: c.obstacle is _NO_QUORUM and c.unavailable is Unavailable.RAISE,
        Action.FAIL,
    ),
    Row(
        "no quorum: requeue",
        lambda c: c.obstacle is _NO_QUORUM and c.unavailable is Unavailable.REQUEUE,
        Action.WAIT,
    ),
    # The marker: another delivery of the message, or another message of its tick.
    Row(
        "another message of its tick was skipped, and this one has begun",
        lambda c: (
            c.obstacle is _MARKER
            and c.role is Role.SKIPPED
            and c.may_have_begun
            and not c.same_message
            and not c.has_retaken
        ),
        Action.RETAKE,
    ),
    Row(
        "its own body ended without an outcome before",
        lambda c: (
            c.obstacle is _MARKER
            and c.role is Role.ABANDONED
            and c.same_message
            and not c.has_retaken
        ),
        Action.RETAKE,
    ),
    # The marker may differ from node to node, so each try to take it over could meet another one.
    Row(
        "it was withdrawn, and another delivery has its marker",
        lambda c: (
            c.obstacle is _MARKER and c.role in (Role.REPLACED, Role.REVOKED) and c.has_taken_over
        ),
        Action.REQUEUE_COPY,
    ),
    Row(
        "a call with its id replaced it while it waited",
        lambda c: c.obstacle is _MARKER and c.role is Role.REPLACED and c.holder is Holder.ITSELF,
        Action.IGNORE,
    ),
    Row(
        "a newer call replaced it while it waited",
        lambda c: c.obstacle is _MARKER and c.role is Role.REPLACED,
        Action.END_AS_REPLACED,
    ),
    Row(
        "it was revoked while it waited",
        lambda c: c.obstacle is _MARKER and c.role is Role.REVOKED,
        Action.END_AS_REVOKED,
    ),
    Row(
        "another delivery of it has ended",
        lambda c: c.obstacle is _MARKER and c.role.is_over,
        Action.IGNORE,
    ),
    Row(
        "another delivery of it runs, and may be lost",
        lambda c: c.obstacle is _MARKER,
        Action.REQUEUE_COPY,
    ),
    # Whatever the policies are about tasks that hold a key: a pause does no task's work.
    Row("the key is paused", lambda c: c.holder is Holder.PAUSE, Action.WAIT),
    # A holder that is no rival. Of the places as the next to run, those of a tick's messages are
    # equal: one that its worker could not name in the message looks like that of another message.
    Row(
        "stop: it, or another message of its tick, is already next",
        lambda c: c.is_next,
        Action.OVERTAKE,
    ),
    Row(
        "another message of its tick waits",
        lambda c: c.holder is Holder.COPY,
        Action.REQUEUE_COPY,
    ),
    # It is known to be older only by the clocks of publishers: it has no lock that shows it.
    Row(
        "debounce: it was sent again under its id",
        lambda c: c.holder_is_newer and c.holder is Holder.ITSELF,
        Action.IGNORE,
    ),
    Row("debounce: a newer call waits", lambda c: c.holder_is_newer, Action.END_AS_REPLACED),
    Row(
        "an earlier part of its work holds the key", lambda c: c.holder_is_earlier_part, Action.WAIT
    ),
    Row(
        "no contender has a quorum",
        lambda c: c.split and c.locks_at_publish,
        Action.WAIT,
    ),
    # A lock that the worker takes: `lock_on_conflict`.
    Row(
        "conflict at run, and the policy is a function",
        lambda c: c.obstacle is _LOCK and c.at_run is ConflictPolicy.FUNCTION,
        Need.POLICY,
    ),
    # If each contender gave way to the others, no task would do the work.
    Row(
        "conflict at run: no contender gives way in a split vote",
        lambda c: c.obstacle is _LOCK and c.split and c.at_run is not ConflictPolicy.RAISE,
        Action.WAIT,
    ),
    Row(
        "conflict at run: requeue",
        lambda c: c.obstacle is _LOCK and c.at_run is ConflictPolicy.REQUEUE,
        Action.WAIT,
    ),
    Row(
        "conflict at run: skip",
        lambda c: c.obstacle is _LOCK and c.at_run is ConflictPolicy.SKIP,
        Action.SKIP,
    ),
    # Only a call of the same task that is known to be older is stopped, or gives way.
    Row(
        "stop: no other call of this task has the lock",
        lambda c: (
            c.stops and (c.holder is Holder.FOREIGN or not c.same_work or c.role is Role.FINISHED)
        ),
        Action.WAIT,
    ),
    Row(
        "stop: the body that sent it has the lock",
        lambda c: c.stops and c.holder is Holder.SENDER,
        Action.WAIT,
    ),
    Row(
        "stop: a newer call has the lock, or waits for it",
        lambda c: c.stops and c.order is Order.NEWER and not c.others_gave_way,
        Action.END_AS_REPLACED,
    ),
    Row(
        "stop: an older call waits for the lock",
        lambda c: c.stops and c.order is Order.OLDER and c.role is Role.QUEUED,
        Action.OVERTAKE,
    ),
    Row(
        "stop: an older call has the lock",
        lambda c: c.stops and c.order is Order.OLDER,
        Action.REQUEST_STOP,
    ),
    Row("stop: neither is older", lambda c: c.stops, Action.WAIT),
    Row(
        "conflict at run: reject",
        lambda c: c.obstacle is _LOCK and c.at_run is ConflictPolicy.REJECT and c.may_be_rejected,
        Action.REJECT,
    ),
    Row(
        "conflict at run: reject, and that is not safe",
        lambda c: c.obstacle is _LOCK and c.at_run is ConflictPolicy.REJECT,
        Action.FAIL_NOT_REJECTED,
    ),
    Row(
        "conflict at run: raise",
        lambda c: c.obstacle is _LOCK and c.at_run is ConflictPolicy.RAISE,
        Action.FAIL,
    ),
    # A lock that is taken at publish: `lock_on_duplicate`.
    Row("no task of this package", lambda c: c.holder is Holder.FOREIGN, Action.WAIT),
    Row("the holder does other work", lambda c: not c.same_work, Action.WAIT),
    Row("the holder may be skipped", lambda c: c.holder_may_be_skipped, Action.WAIT),
    # Only a publisher replaces. A message that brought a lock and finds another call's lock in its
    # place was replaced itself.
    Row(
        "it continues work that has begun",
        lambda c: c.has_begun and not (c.was_replaced and c.replaces),
        Action.WAIT,
    ),
    Row(
        "a duplicate, and the policy is a function",
        lambda c: c.at_publish is DuplicatePolicy.FUNCTION,
        Need.POLICY,
    ),
    Row(
        "a duplicate: raise",
        lambda c: c.at_publish is DuplicatePolicy.RAISE,
        Action.FAIL_AS_DUPLICATE,
    ),
    Row("a duplicate: existing", lambda c: c.at_publish is DuplicatePolicy.EXISTING, Action.SKIP),
    Row(
        "replace: the work of its window is done",
        lambda c: c.replaces and c.role is Role.FINISHED,
        Action.SKIP,
    ),
    Row(
        "replace: a newer call replaced it",
        lambda c: c.replaces and c.brought_lock,
        Action.END_AS_REPLACED,
    ),
    Row("replace: it runs after the older call", lambda c: c.replaces, Action.WAIT),
)


def on_contention(contention: Contention) -> Action | Need:
    """Return the next step for a message that did not get its lock and marker."""
    return first_match(CONTENTION, contention).then


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """
    How a message can wait.

    Attributes:
        eager: it runs under `apply()`.
        is_exhausted: it has waited for `lock_give_up_after`.
        is_refused: another task has a key that the message has just tried to acquire.
        is_registered: the nodes that refused it remember it, and will wake it.
    """

    eager: bool
    is_exhausted: bool
    is_refused: bool
    is_registered: bool


REQUEUES: tuple[Row[Waiting, Action], ...] = (
    Row("apply() has no queue", lambda w: w.eager, Action.WAIT_IN_PLACE),
    Row("lock_give_up_after is over", lambda w: w.is_exhausted, Action.GIVE_UP),
    Row(
        "no node would wake it",
        lambda w: w.is_refused and not w.is_registered,
        Action.TRY_BY_NAME,
    ),
    Row("later", lambda _: True, Action.REQUEUE),
)


def how_to_wait(waiting: Waiting) -> Action:
    """Return the next step for a message that needs its lock later."""
    return first_match(REQUEUES, waiting).then


#: After these steps the message needs its lock later, or the rules decide anew.
_STILL_NEEDS_IT = (
    *(Action.WAIT, Action.REQUEUE_COPY, Need.POLICY, Action.RETAKE),
    *(Action.REQUEST_STOP, Action.OVERTAKE),
)

FINAL: tuple[Row[Contention, bool], ...] = (
    Row("the marker's task has ended", lambda c: c.obstacle is _MARKER and c.role.is_over, True),
    Row("the marker's task may end", lambda c: c.obstacle is _MARKER, False),
    Row("the call with a window's key has ended", lambda c: c.for_window and c.role.is_over, True),
    Row(
        "a newer call has the lock",
        lambda c: c.stops and on_contention(c) is Action.END_AS_REPLACED,
        True,
    ),
    Row("lock_wait comes before the policy", lambda c: c.obstacle is not _RESERVED, False),
    Row("it needs the lock later", lambda c: on_contention(c) in _STILL_NEEDS_IT, False),
    Row("it ends without the lock", lambda _: True, True),
)


def is_final(contention: Contention) -> bool:
    """Return whether a message gains nothing from `lock_wait`."""
    return first_match(FINAL, contention).then


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """
    The facts of a message that may wait in its process for a moment.

    Attributes:
        is_final: it gains nothing from waiting.
        is_requeued: it would be requeued otherwise.
        is_newer: an older call has the lock or waits for it, and has to give way.
        eager: it runs under `apply()`.
        wait_is_set: the task has a `lock_wait` of its own.
        goes_later: the key is free, and another message that was woken for it goes first.
        is_far_behind: many other messages come before it.
        is_held_long: the holder has had the key for longer than a short body takes.
    """

    is_final: bool
    is_requeued: bool
    is_newer: bool
    eager: bool
    wait_is_set: bool
    goes_later: bool
    is_far_behind: bool
    is_held_long: bool


IN_PLACE: tuple[Row[InPlace, bool], ...] = (
    Row("it gains nothing from waiting", lambda p: p.is_final, False),
    Row("the older call is asked to stop first", lambda p: p.is_newer, False),
    Row("it would end without the lock", lambda p: not p.is_requeued, True),
    Row("apply() has no queue to wait in", lambda p: p.eager, True),
    Row("lock_wait is set", lambda p: p.wait_is_set, True),
    Row("many go first, and need a process when they are woken", lambda p: p.is_far_behind, False),
    Row("another goes first, and comes in a moment", lambda p: p.goes_later, True),
    Row("the holder's body is long, and wakes it when it ends", lambda p: p.is_held_long, False),
    Row("the key may be free in a moment", lambda _: True, True),
)


def waits_in_place(in_place: InPlace) -> bool:
    """Return whether a message keeps its process for `lock_wait`."""
    return first_match(IN_PLACE, in_place).then


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """
    The records of one node about a call.

    Attributes:
        marker: the role in its message's marker; None where there is none.
        key: the role in a key that the call's task has; None where it has none.
    """

    marker: Role | None
    key: Role | None

    @property
    def shows_work(self) -> bool:
        """Whether the call waits or runs, or a newer one does its work."""
        is_marked = self.marker in (Role.RUNNING, Role.REPLACED)
        return is_marked or self.key in (Role.QUEUED, Role.RUNNING)


def evidence_of(sightings: Sequence[Sighting], nodes: int) -> Evidence:
    """
    Return what the nodes' replies show of a call.

    A quorum shows each call that waits or runs, in its key, its marker or both: on each node the
    call changes from one to the other in one step. A marker *finished* needs no quorum, because it
    is written only when the work is done.

    Args:
        sightings: one of each node that replied.
        nodes: how many nodes there are.
    """
    markers = [sighting.marker for sighting in sightings]
    if Role.FINISHED in markers:
        return Evidence.FINISHED
    if Role.QUEUED in markers:
        return Evidence.UNCLEAR  # a worker or a publisher is ending the message without its body
    needed, silent = nodes // 2 + 1, nodes - len(sightings)
    if markers.count(Role.REPLACED) >= needed:
        return Evidence.REPLACED
    shown = sum(sighting.shows_work for sighting in sightings)
    if shown >= needed:
        return Evidence.UNDER_WAY
    return Evidence.UNCLEAR if shown and shown + silent >= needed else Evidence.GONE
