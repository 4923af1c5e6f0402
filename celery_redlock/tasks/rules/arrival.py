"""
What becomes of a duplicate that had to be sent, when a worker gets it.

It is judged by the call that it repeats, which held the key when it was sent; not by who holds the
key when the worker looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from celery_redlock.tasks.rules.facts import Evidence, Role, Row, first_match

__all__ = ["ROWS", "Arrival", "Repetition", "Sighting", "decide", "evidence_of"]


class Arrival(Enum):
    """What to do with the message."""

    TAKE = auto()  #: it is no duplicate any more: let it take its lock
    REQUEUE = auto()  #: look again later
    ASK = auto()  #: call the task's `lock_on_conflict`, and decide anew
    FAIL = auto()  #: end it with `DuplicateTask`
    SKIP = auto()  #: end it with `lock_skip_result`


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


ROWS: tuple[Row[Repetition, Arrival], ...] = (
    Row("nobody does its work", lambda r: r.evidence is Evidence.GONE, Arrival.TAKE),
    Row("nobody can tell", lambda r: r.evidence is Evidence.UNCLEAR, Arrival.REQUEUE),
    Row("a newer call does its work", lambda r: r.evidence is Evidence.REPLACED, Arrival.SKIP),
    Row("the policy is a function", lambda r: r.policy is None, Arrival.ASK),
    Row("duplicates are refused", lambda r: r.policy == "raise", Arrival.FAIL),
    Row("the first does the work, or did", lambda _: True, Arrival.SKIP),
)


def decide(repetition: Repetition) -> Arrival:
    """Return what becomes of the message."""
    return first_match(ROWS, repetition).then


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
    def is_alive(self) -> bool:
        """Whether the call waits or runs, as far as this node can tell."""
        return self.mark is Role.RUNNING or self.key in (Role.QUEUED, Role.RUNNING)


def evidence_of(sightings: Sequence[Sighting], nodes: int) -> Evidence:
    """
    Return what the nodes' answers come to.

    A quorum shows each call that waits or runs, in its key or its mark or both: it goes from one to
    the other in one step on each node. A mark that is written only when the work is done needs no
    quorum.

    Args:
        sightings: of the nodes that answered.
        nodes: how many there are.
    """
    marks = [sighting.mark for sighting in sightings]
    if any(mark in DONE for mark in marks):
        return Evidence.FINISHED
    needed, silent = nodes // 2 + 1, nodes - len(sightings)
    if marks.count(Role.REPLACED) >= needed:
        return Evidence.REPLACED
    shown = sum(sighting.is_alive for sighting in sightings)
    if shown >= needed:
        return Evidence.UNDER_WAY
    return Evidence.UNCLEAR if shown and shown + silent >= needed else Evidence.GONE


#: A tick that was skipped gave way to another run.
DONE = (Role.FINISHED, Role.SKIPPED)
