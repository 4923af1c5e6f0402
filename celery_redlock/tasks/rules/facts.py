"""
What the rules are about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Generic, TypeVar

__all__ = ["Evidence", "Holder", "Role", "Row", "first_match"]

_Facts = TypeVar("_Facts")
_Action = TypeVar("_Action")


class Role(StrEnum):
    """What the task behind a key is doing; the word stands in the owner value."""

    QUEUED = "queued"  #: its message is on its way, or waits for a retry
    RUNNING = "running"
    FINISHED = "finished"  #: the key only says so until it ends
    SKIPPED = "skipped"  #: the same, of a tick that ended without its body
    ABANDONED = "abandoned"  #: the same, of a tick whose body has ended without an outcome
    FAILED = "failed"  #: the same, of a message that failed without its body
    REPLACED = "replaced"  #: its message is not to run, because a newer call takes its place
    REVOKED = "revoked"  #: its message is not to run, because somebody took it back

    @property
    def is_over(self) -> bool:
        """Whether nobody is at work any more, or will be."""
        return self not in (Role.QUEUED, Role.RUNNING)


class Holder(Enum):
    """Who holds the key that a message wants."""

    FOREIGN = auto()  #: no task of this package
    ITSELF = auto()  #: a message with the same task id
    COPY = auto()  #: another message of the same tick
    SENDER = auto()  #: the task that sends this message, or whose end has sent it
    OTHER = auto()  #: another task


class Evidence(Enum):
    """What the nodes show of the call whose duplicate a message is."""

    UNDER_WAY = auto()  #: it waits or runs
    FINISHED = auto()  #: its work is done
    REPLACED = auto()  #: a newer call does its work
    UNCLEAR = auto()  #: some nodes show it, and with those that are silent they could be a quorum
    GONE = auto()  #: nobody does its work: it was revoked, expired, failed early, or is forgotten


@dataclass(frozen=True, slots=True)
class Row(Generic[_Facts, _Action]):
    """
    One rule.

    Attributes:
        name: why, in a few words.
        when: whether it matches the facts.
        then: what to do.
    """

    name: str
    when: Callable[[_Facts], bool]
    then: _Action


def first_match(rows: tuple[Row[_Facts, _Action], ...], facts: _Facts) -> Row[_Facts, _Action]:
    """Return the row that decides; the last row of a table matches always."""
    return next(row for row in rows if row.when(facts))
