"""
What becomes of messages that lock at publish, when a worker gets one that may be a duplicate.

A duplicate that had to be sent is judged by the call that it repeats, which held the key when it
was sent; not by who holds the key when the worker looks. Any other is judged by who holds the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from celery_redlock.tasks.rules.facts import Evidence, Role, Row, first_match

__all__ = ["CONFLICTS", "REPETITIONS", "Arrival", "Conflict", "Repetition", "Sighting"]
__all__ += ["decide", "evidence_of", "settle"]


class Arrival(Enum):
    """What to do with the message."""

    TAKE = auto()  #: it is no duplicate any more: let it take its lock
    REQUEUE = auto()  #: look again later
    ASK = auto()  #: call the task's `lock_on_conflict`, and decide anew
    FAIL = auto()  #: end it with `DuplicateTask`
    SKIP = auto()  #: end it with `lock_skip_result`
    STAND_BACK = auto()  #: end it as revoked, because a newer call takes its place


@dataclass(frozen=True, slots=True)
class Repetition:
    """
    What is known of a duplicate.

    Attributes:
        evidence: what has become of the call that it repeats.
        policy: `lock_on_conflict` at publish; None where it is a function that was not called yet.
    """

    evidence: Evidence
    policy: str | None


REPETITIONS: tuple[Row[Repetition, Arrival], ...] = (
    Row("nobody does its work", lambda r: r.evidence is Evidence.GONE, Arrival.TAKE),
    Row("nobody can tell", lambda r: r.evidence is Evidence.UNCLEAR, Arrival.REQUEUE),
    Row("a newer call does its work", lambda r: r.evidence is Evidence.REPLACED, Arrival.SKIP),
    Row("the policy is a function", lambda r: r.policy is None, Arrival.ASK),
    Row("duplicates are refused", lambda r: r.policy == "raise", Arrival.FAIL),
    Row("the newer one counts", lambda r: r.policy == "replace", Arrival.TAKE),
    Row("the first does the work, or did", lambda _: True, Arrival.SKIP),
)


def decide(repetition: Repetition) -> Arrival:
    """Return what becomes of a duplicate that had to be sent."""
    return first_match(REPETITIONS, repetition).then


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """
    What is known when a message finds a key held that it takes at publish.

    Attributes:
        is_task: the holder is a task of this package, and no earlier part of the same work.
        role: what the holder's task is doing.
        same_work: the holder's call is of the same task, and has all keys, not only some.
        brought_lock: the message was sent with the lock.
        has_begun: it goes on with work that was begun, and is nobody's duplicate.
        policy: `lock_on_conflict` at publish; None where it is a function that was not called yet.
        may_be_skipped: the holder is an earlier tick that may come too late to be run.
    """

    is_task: bool
    role: Role
    same_work: bool
    brought_lock: bool
    has_begun: bool
    policy: str | None
    may_be_skipped: bool

    @property
    def was_replaced(self) -> bool:
        """Whether the lock that the message brought has been taken over by another call."""
        return self.brought_lock and self.role is not Role.FINISHED


CONFLICTS: tuple[Row[Conflict, Arrival], ...] = (
    Row("nobody is known to do its work", lambda c: not c.is_task, Arrival.REQUEUE),
    Row("the holder does other work", lambda c: not c.same_work, Arrival.REQUEUE),
    Row("the holder may be skipped", lambda c: c.may_be_skipped, Arrival.REQUEUE),
    # To replace is for the publisher. One that brought a lock and finds another call's in its place
    # was replaced itself.
    Row(
        "goes on with work that has begun",
        lambda c: c.has_begun and not (c.was_replaced and c.policy == "replace"),
        Arrival.REQUEUE,
    ),
    Row("the policy is a function", lambda c: c.policy is None, Arrival.ASK),
    Row("duplicates are refused", lambda c: c.policy == "raise", Arrival.FAIL),
    Row("a duplicate", lambda c: c.policy == "existing", Arrival.SKIP),
    Row("the work of its window is done", lambda c: c.role is Role.FINISHED, Arrival.SKIP),
    Row("a newer call counts", lambda c: c.brought_lock, Arrival.STAND_BACK),
    Row("the newer one, after the one that runs", lambda _: True, Arrival.REQUEUE),
)


def settle(conflict: Conflict) -> Arrival:
    """Return what becomes of a message whose key is held."""
    return first_match(CONFLICTS, conflict).then


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """
    What one node shows of a call.

    Attributes:
        mark: the role in its message's mark; None where there is none.
        key: the role in a key that the call's task has; None where it has none.
    """

    mark: Role | None
    key: Role | None

    @property
    def shows_work(self) -> bool:
        """Whether the call waits or runs, or a newer one does its work, as far as one can tell."""
        return self.mark in (Role.RUNNING, Role.REPLACED) or self.key in (Role.QUEUED, Role.RUNNING)


def evidence_of(sightings: Sequence[Sighting], nodes: int) -> Evidence:
    """
    Return what the nodes' answers come to.

    A quorum shows each call that waits or runs, in its key or its mark or both: it goes from one to
    the other in one step on each node. The mark that is written only when the work is done needs no
    quorum.

    Args:
        sightings: of the nodes that answered.
        nodes: how many there are.
    """
    marks = [sighting.mark for sighting in sightings]
    if Role.FINISHED in marks:
        return Evidence.FINISHED
    if Role.QUEUED in marks:
        return Evidence.UNCLEAR  # its message is just being ended without its body
    needed, silent = nodes // 2 + 1, nodes - len(sightings)
    if marks.count(Role.REPLACED) >= needed:
        return Evidence.REPLACED
    shown = sum(sighting.shows_work for sighting in sightings)
    if shown >= needed:
        return Evidence.UNDER_WAY
    return Evidence.UNCLEAR if shown and shown + silent >= needed else Evidence.GONE
