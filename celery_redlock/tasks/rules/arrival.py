"""
Decisions about a message that a worker received: it takes its lock, waits, is requeued, or ends.

`ARRIVALS` decides before the message takes anything, `CONTENTION` when it did not get what it
takes, and `REQUEUES` and `IN_PLACE` how it waits. A duplicate that had to be sent is judged by the
call that it repeats, not by who holds the key when the worker looks. Any other message is judged by
who holds the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from celery_redlock.tasks.rules.facts import (
    Evidence,
    Holder,
    Obstacle,
    Order,
    Overlap,
    PublishPolicy,
    Record,
    Role,
    Row,
    RunPolicy,
    Unavailable,
    first_match,
)

__all__ = ["ARRIVALS", "CONTENTION", "FINAL", "IN_PLACE", "MARKERS", "REQUEUES"]
__all__ += ["Action", "Arrival", "Contention", "InPlace", "Sighting", "Waiting"]
__all__ += ["evidence_of", "how_to_wait", "is_final", "on_arrival", "on_contention"]
__all__ += ["waits_in_place"]


class Action(Enum):
    """The worker's next step with the message."""

    TAKE = auto()  #: take its lock and marker
    RETAKE = auto()  #: evict the marker, which does not concern this message; take everything
    READ_EVIDENCE = auto()  #: ask the nodes about the call that it repeats; then decide anew
    READ_RECORD = auto()  #: read what the leaders recorded of its tick; then decide anew
    ASK_POLICY = auto()  #: call the task's `lock_on_conflict`; then decide anew
    WAIT = auto()  #: it needs its lock later; `REQUEUES` decides how it waits
    TRY_BY_NAME = auto()  #: try once more; nodes that refuse it remember it; then decide anew
    REQUEUE = auto()  #: publish it again, for later
    WAIT_IN_PLACE = auto()  #: the same under `apply()`, which has no queue
    REQUEUE_COPY = auto()  #: publish it again until the other delivery or message of it has ended
    REQUEST_STOP = auto()  #: be the next run, ask the older one to stop, and requeue
    OVERTAKE = auto()  #: be the next run instead of an older one that waits, and try for the lock
    RUN_UNLOCKED = auto()
    SKIP = auto()  #: end it with `lock_skip_result`
    SKIP_AS_MISSED = auto()  #: the same, for a tick after its starting deadline
    FAIL = auto()  #: raise why it did not get its lock
    FAIL_NOT_REJECTED = auto()  #: the same, where the policy is to reject it and that is not safe
    FAIL_AS_DUPLICATE = auto()  #: raise `DuplicateTask`
    GIVE_UP = auto()  #: raise `LockNotAcquired`: `lock_give_up_after` is over
    REJECT = auto()  #: to the dead letters
    IGNORE = auto()  #: another delivery or message of it has ended; this one ends without a trace
    DROP_AS_SUPERSEDED = auto()  #: the same, because a newer leader sends its tick
    END_AS_REPLACED = auto()  #: end it as revoked, because a newer call replaces it
    END_AS_REVOKED = auto()  #: end it as revoked


#: The marker of a message that ended without its body. A worker that finds it while the message is
#: being ended requeues; a tick's marker is *skipped* in place of all these (`ending.MARKERS`).
MARKERS: Mapping[Action, Role] = {
    Action.SKIP: Role.FINISHED,
    Action.SKIP_AS_MISSED: Role.FINISHED,
    Action.FAIL: Role.FAILED,
    Action.FAIL_NOT_REJECTED: Role.FAILED,
    Action.FAIL_AS_DUPLICATE: Role.FINISHED,
    Action.GIVE_UP: Role.FAILED,
    Action.END_AS_REPLACED: Role.FINISHED,
    Action.END_AS_REVOKED: Role.FAILED,  # nobody does its work
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
        policy: `lock_on_conflict` at publish.
        from_leader: it is for a tick, and from a beat that records its ticks.
        brought_lock: it was sent with its lock, and others may have given way to it.
        record: what the leaders' record shows.
    """

    missed_deadline: bool
    continues: bool
    may_have_begun: bool
    names_original: bool
    evidence: Evidence
    policy: PublishPolicy
    from_leader: bool
    brought_lock: bool
    record: Record

    @property
    def is_duplicate(self) -> bool:
        """Whether it repeats another call; work that has begun is no duplicate any more."""
        return self.names_original and not self.continues and not self.may_have_begun

    @property
    def first_counts(self) -> bool:
        """Whether it repeats a call that does the work, or did."""
        return self.is_duplicate and self.evidence in (Evidence.UNDER_WAY, Evidence.FINISHED)

    @property
    def may_be_superseded(self) -> bool:
        """Whether a newer leader than its sender may send its tick."""
        return self.from_leader and not self.continues and not self.brought_lock


ARRIVALS: tuple[Row[Arrival, Action], ...] = (
    Row(
        "its starting deadline has passed",
        lambda a: a.missed_deadline and not a.continues and not a.may_have_begun,
        Action.SKIP_AS_MISSED,
    ),
    Row(
        "it repeats a call",
        lambda a: a.is_duplicate and a.evidence is Evidence.UNREAD,
        Action.READ_EVIDENCE,
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
        lambda a: a.first_counts and a.policy is PublishPolicy.FUNCTION,
        Action.ASK_POLICY,
    ),
    Row(
        "the first call counts: raise",
        lambda a: a.first_counts and a.policy is PublishPolicy.RAISE,
        Action.FAIL_AS_DUPLICATE,
    ),
    Row(
        "the first call counts: existing",
        lambda a: a.first_counts and a.policy is PublishPolicy.EXISTING,
        Action.SKIP,
    ),
    Row(
        "a leader sent it",
        lambda a: a.may_be_superseded and a.record is Record.UNREAD,
        Action.READ_RECORD,
    ),
    Row(
        "a newer leader sends its tick",
        lambda a: a.may_be_superseded and a.record is Record.SUPERSEDED,
        Action.DROP_AS_SUPERSEDED,
    ),
    Row("nothing keeps it from taking its lock", lambda _: True, Action.TAKE),
)


def on_arrival(arrival: Arrival) -> Action:
    """Return what becomes of a message before it takes anything."""
    return first_match(ARRIVALS, arrival).then


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """
    The facts of a message that did not get its lock and marker.

    Attributes:
        obstacle: why.
        split: several contenders share the nodes, and none has a quorum.
        holder: who holds the key.
        role: the state of the holder's task.
        order: the age of the holder's run.
        same_work: the holder's call is of the same task and has all keys, not only some.
        same_message: the marker is that of this very message, not of another one of its tick.
        holds_until_result: the holder's lock lasts until its result is stored and what follows is
            sent, so that what follows may find it held.
        holder_may_be_skipped: the holder is an earlier tick that may miss its starting deadline.
        locks_at_publish: its mode takes a lock at publish.
        for_window: its mode keeps the key taken for `lock_window`.
        brought_lock: it was sent with its lock.
        continues: it continues work that has begun: a retry, or a replacement.
        may_have_begun: a worker may have been lost in its body, or its body may run.
        has_retaken: it has evicted a marker that did not concern it.
        has_taken_over: it was ending as replaced or revoked, and did not get its marker for that.
        may_be_rejected: rejecting it loses nothing that anybody waits for.
        overlap: `lock_overlap`.
        at_publish: `lock_on_conflict` at publish.
        at_run: `lock_on_conflict` at run.
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
    locks_at_publish: bool
    for_window: bool
    brought_lock: bool
    continues: bool
    may_have_begun: bool
    has_retaken: bool
    has_taken_over: bool
    may_be_rejected: bool
    overlap: Overlap
    at_publish: PublishPolicy
    at_run: RunPolicy
    unavailable: Unavailable
    eager: bool

    @property
    def holder_is_earlier_part(self) -> bool:
        """
        Whether the holder is an earlier part of the same work, which releases the key in time.

        Under `apply()` it would wait for itself.
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
    def has_begun(self) -> bool:
        """Whether it continues work that has begun, so that it is no duplicate."""
        return self.continues or self.may_have_begun


_NO_QUORUM, _MARKER, _RESERVED, _LOCK = (
    Obstacle.NO_QUORUM,
    Obstacle.MARKER,
    Obstacle.RESERVED,
    Obstacle.LOCK,
)

CONTENTION: tuple[Row[Contention, Action], ...] = (
    # Too few nodes answered: `lock_on_unavailable`.
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
    Row("no quorum: requeue", lambda c: c.obstacle is _NO_QUORUM, Action.WAIT),
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
    # Its marker may differ from node to node. Each try to take one over could show another one.
    Row(
        "it was withdrawn, and another delivery has its marker",
        lambda c: (
            c.obstacle is _MARKER and c.role in (Role.REPLACED, Role.REVOKED) and c.has_taken_over
        ),
        Action.REQUEUE_COPY,
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
    # A holder that is no rival.
    Row(
        "another message of its tick waits",
        lambda c: c.holder is Holder.COPY,
        Action.REQUEUE_COPY,
    ),
    Row(
        "an earlier part of its work holds the key", lambda c: c.holder_is_earlier_part, Action.WAIT
    ),
    Row(
        "no contender has a quorum",
        lambda c: c.split and (c.locks_at_publish or c.overlap is not Overlap.NONE),
        Action.WAIT,
    ),
    # A schedule's run: `lock_overlap`. Only a run known to be older is replaced, and only one known
    # to be older gives way.
    Row("overlap: queue", lambda c: c.overlap is Overlap.QUEUE, Action.WAIT),
    Row("overlap: forbid", lambda c: c.overlap is Overlap.FORBID, Action.SKIP),
    Row(
        "overlap: replace, and nobody can be asked to stop",
        lambda c: (
            c.overlap is Overlap.REPLACE and (c.holder is Holder.FOREIGN or c.role is Role.FINISHED)
        ),
        Action.WAIT,
    ),
    Row(
        "overlap: replace, and another task has the lock",
        lambda c: c.overlap is Overlap.REPLACE and not c.same_work,
        Action.WAIT,
    ),
    Row(
        "overlap: replace, and a newer run has the lock",
        lambda c: c.overlap is Overlap.REPLACE and c.order is Order.NEWER,
        Action.SKIP,
    ),
    Row(
        "overlap: replace, and an older run waits",
        lambda c: c.overlap is Overlap.REPLACE and c.order is Order.OLDER and c.role is Role.QUEUED,
        Action.OVERTAKE,
    ),
    Row(
        "overlap: replace, and an older run has the lock",
        lambda c: c.overlap is Overlap.REPLACE and c.order is Order.OLDER,
        Action.REQUEST_STOP,
    ),
    Row(
        "overlap: replace, and neither is older",
        lambda c: c.overlap is Overlap.REPLACE,
        Action.WAIT,
    ),
    # A lock that the worker takes: `lock_on_conflict` at run.
    Row(
        "conflict at run, and the policy is a function",
        lambda c: c.obstacle is _LOCK and c.at_run is RunPolicy.FUNCTION,
        Action.ASK_POLICY,
    ),
    # Were each contender to give way to the others, nobody would do the work.
    Row(
        "conflict at run: nobody gives way in a split vote",
        lambda c: c.obstacle is _LOCK and c.split and c.at_run is not RunPolicy.RAISE,
        Action.WAIT,
    ),
    Row(
        "conflict at run: requeue",
        lambda c: c.obstacle is _LOCK and c.at_run is RunPolicy.REQUEUE,
        Action.WAIT,
    ),
    Row(
        "conflict at run: skip",
        lambda c: c.obstacle is _LOCK and c.at_run is RunPolicy.SKIP,
        Action.SKIP,
    ),
    Row(
        "conflict at run: reject",
        lambda c: c.obstacle is _LOCK and c.at_run is RunPolicy.REJECT and c.may_be_rejected,
        Action.REJECT,
    ),
    Row(
        "conflict at run: reject, and that is not safe",
        lambda c: c.obstacle is _LOCK and c.at_run is RunPolicy.REJECT,
        Action.FAIL_NOT_REJECTED,
    ),
    Row("conflict at run: raise", lambda c: c.obstacle is _LOCK, Action.FAIL),
    # A lock that is taken at publish: `lock_on_conflict` at publish.
    Row("no task of this package", lambda c: c.holder is Holder.FOREIGN, Action.WAIT),
    Row("the holder does other work", lambda c: not c.same_work, Action.WAIT),
    Row("the holder may be skipped", lambda c: c.holder_may_be_skipped, Action.WAIT),
    # To replace is for the publisher. A message that brought a lock and finds another call's in its
    # place was replaced itself.
    Row(
        "it continues work that has begun",
        lambda c: c.has_begun and not (c.was_replaced and c.at_publish is PublishPolicy.REPLACE),
        Action.WAIT,
    ),
    Row(
        "a duplicate, and the policy is a function",
        lambda c: c.at_publish is PublishPolicy.FUNCTION,
        Action.ASK_POLICY,
    ),
    Row(
        "a duplicate: raise",
        lambda c: c.at_publish is PublishPolicy.RAISE,
        Action.FAIL_AS_DUPLICATE,
    ),
    Row("a duplicate: existing", lambda c: c.at_publish is PublishPolicy.EXISTING, Action.SKIP),
    Row("replace: its window's work is done", lambda c: c.role is Role.FINISHED, Action.SKIP),
    Row("replace: a newer call replaced it", lambda c: c.brought_lock, Action.END_AS_REPLACED),
    Row("replace: it runs after the older call", lambda _: True, Action.WAIT),
)


def on_contention(contention: Contention) -> Action:
    """Return what becomes of a message that did not get what it takes."""
    return first_match(CONTENTION, contention).then


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """
    How a message can wait.

    Attributes:
        eager: it runs under `apply()`.
        is_exhausted: it has waited for `lock_give_up_after`.
        is_refused: another has a key that it has just tried to take.
        is_remembered: the nodes that refused it remember it, and will wake it.
    """

    eager: bool
    is_exhausted: bool
    is_refused: bool
    is_remembered: bool


REQUEUES: tuple[Row[Waiting, Action], ...] = (
    Row("apply() has no queue", lambda w: w.eager, Action.WAIT_IN_PLACE),
    Row("lock_give_up_after is over", lambda w: w.is_exhausted, Action.GIVE_UP),
    Row(
        "no node would wake it",
        lambda w: w.is_refused and not w.is_remembered,
        Action.TRY_BY_NAME,
    ),
    Row("later", lambda _: True, Action.REQUEUE),
)


def how_to_wait(waiting: Waiting) -> Action:
    """Return what becomes of a message that is to be requeued."""
    return first_match(REQUEUES, waiting).then


#: After these the message needs its lock later, or is decided anew.
_STILL_NEEDS_IT = frozenset(
    {
        *(Action.WAIT, Action.REQUEUE_COPY, Action.ASK_POLICY, Action.RETAKE),
        *(Action.REQUEST_STOP, Action.OVERTAKE),
    }
)

FINAL: tuple[Row[Contention, bool], ...] = (
    Row("the marker is over", lambda c: c.obstacle is _MARKER and c.role.is_over, True),
    Row("the marker's task may end", lambda c: c.obstacle is _MARKER, False),
    Row("a window's key is over", lambda c: c.for_window and c.role.is_over, True),
    Row("lock_wait comes before the policy", lambda c: c.obstacle is not _RESERVED, False),
    Row("a schedule's run", lambda c: c.overlap is not Overlap.NONE, False),
    Row("it needs the lock later", lambda c: on_contention(c) in _STILL_NEEDS_IT, False),
    Row("it ends without the lock", lambda _: True, True),
)


def is_final(contention: Contention) -> bool:
    """Return whether waiting for `lock_wait` cannot help a message."""
    return first_match(FINAL, contention).then


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """
    The facts of a message that may wait in its process for a moment.

    Attributes:
        is_final: waiting cannot help.
        is_requeued: it would be requeued otherwise.
        eager: it runs under `apply()`.
        wait_is_set: the task has a `lock_wait` of its own.
        goes_later: the key is free, and another that was woken for it goes first.
        is_far_behind: many others have waited longer.
        is_held_long: the holder has had the key for longer than a short body takes.
    """

    is_final: bool
    is_requeued: bool
    eager: bool
    wait_is_set: bool
    goes_later: bool
    is_far_behind: bool
    is_held_long: bool


IN_PLACE: tuple[Row[InPlace, bool], ...] = (
    Row("waiting cannot help", lambda p: p.is_final, False),
    Row("it would end without the lock", lambda p: not p.is_requeued, True),
    Row("apply() has no queue to wait in", lambda p: p.eager, True),
    Row("lock_wait is set", lambda p: p.wait_is_set, True),
    Row("many go first, and need a process when they are woken", lambda p: p.is_far_behind, False),
    Row("another goes first, and is here in a moment", lambda p: p.goes_later, True),
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

    A quorum shows each call that waits or runs, in its key, its marker or both: on each node it
    goes from one to the other in one step. A marker *finished* needs no quorum, because
    it is written only when the work is done.

    Args:
        sightings: of the nodes that replied.
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
