"""
The facts that callers collect for the rules, as enums, and the form of a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Generic, Self, TypeVar

_Facts = TypeVar("_Facts")
_Action = TypeVar("_Action")


class Role(StrEnum):
    """The state of the task behind a key or a dedupe marker; part of the owner value."""

    QUEUED = "queued"  #: its message is on its way, or waits for a retry
    RUNNING = "running"
    FINISHED = "finished"  #: the task has ended; the key stays taken until it expires
    SKIPPED = "skipped"  #: a tick ended without its body; the key stays taken until it expires
    ABANDONED = "abandoned"  #: a tick's body ended without an outcome; the key stays taken
    FAILED = "failed"  #: a message failed without its body; the key stays taken
    REPLACED = "replaced"  #: the message must not run: a newer call replaced it
    REVOKED = "revoked"  #: the message must not run: it was revoked

    @property
    def is_over(self) -> bool:
        """Whether no body runs, and none will."""
        return self not in (Role.QUEUED, Role.RUNNING)


class Holder(Enum):
    """The holder of the key that a message or a call needs."""

    FOREIGN = auto()  #: no task of this package
    PAUSE = auto()  #: nobody gets the key now: it is paused
    ITSELF = auto()  #: a message with the same task id
    COPY = auto()  #: another message of the same tick, whose work is not over
    PREDECESSOR = auto()  #: the task whose end sent this message
    SENDER = auto()  #: the task that sent this message, from its body or at its end
    OTHER = auto()  #: another task


class Burst(Enum):
    """The burst of calls that a call finds (`lock_debounce`)."""

    NONE = auto()  #: the call is not debounced
    OPEN = auto()  #: a waiting call is one of the same burst
    DUE = auto()  #: its maximum is over: a worker is about to begin the waiting call


class Evidence(Enum):
    """The records of the nodes about the call that a duplicate repeats."""

    UNREAD = auto()  #: the nodes have not been asked
    UNDER_WAY = auto()  #: it waits or runs
    FINISHED = auto()  #: its work is done
    REPLACED = auto()  #: a newer call does its work
    UNCLEAR = auto()  #: some nodes show it, and with those that are silent they could be a quorum
    GONE = auto()  #: no task does its work: it was revoked, expired, failed early, or is forgotten


class Record(Enum):
    """The leaders' record of a schedule, about the leader that sent a tick."""

    UNREAD = auto()
    CURRENT = auto()  #: no newer leader sends this tick
    SUPERSEDED = auto()  #: a newer leader took over before this tick, and sends it itself


class Need(Enum):
    """A fact that the rules need before they can decide."""

    EVIDENCE = auto()  #: ask the nodes about the call that it repeats; then decide anew
    RECORD = auto()  #: read what the leaders recorded of its tick; then decide anew
    POLICY = auto()  #: call the function of the policy; then decide anew


class Obstacle(Enum):
    """Why a message did not get what it takes."""

    NO_QUORUM = auto()  #: too few nodes replied
    MARKER = auto()  #: another delivery, or another message of its tick, has the dedupe marker
    RESERVED = auto()  #: another call has a key that is taken at publish
    LOCK = auto()  #: another task has a key that is taken only by the worker


class Order(Enum):
    """The age of the holder's call, compared with the message's."""

    OLDER = auto()
    NEWER = auto()
    UNKNOWN = auto()  #: of the same age, or not comparable


class _Policy(StrEnum):
    """A policy that an application may also decide by a function."""

    @classmethod
    def of(cls, policy: str | Callable[..., object]) -> Self:
        """Return the policy of an option's value: a name, or a function."""
        return cls("function" if callable(policy) else policy)


class DuplicatePolicy(_Policy):
    """`lock_on_duplicate`."""

    EXISTING = "existing"
    RAISE = "raise"
    REPLACE = "replace"
    FUNCTION = "function"  #: a function that has not been called yet


class ConflictPolicy(_Policy):
    """`lock_on_conflict`."""

    REQUEUE = "requeue"
    SKIP = "skip"
    STOP = "stop"
    REJECT = "reject"
    RAISE = "raise"
    FUNCTION = "function"  #: a function that has not been called yet


class Unavailable(StrEnum):
    """`lock_on_unavailable`."""

    REQUEUE = "requeue"
    RAISE = "raise"
    RUN_UNLOCKED = "run_unlocked"


class Raised(Enum):
    """The exception with which a request leaves this package."""

    NOTHING = auto()
    RETRY = auto()
    IGNORE = auto()  #: by the application
    YIELDED = auto()  #: `Ignore` by this package: another delivery has the lock or the outcome
    REJECT = auto()  #: to the dead letters
    REJECT_TO_QUEUE = auto()  #: the broker delivers the message again, if it is not acknowledged
    EXCEPTION = auto()  #: any other
    PROCESS_END = auto()  #: no `Exception`: a hard time limit, or a shutdown


@dataclass(frozen=True, slots=True)
class Row(Generic[_Facts, _Action]):
    """
    One rule.

    Attributes:
        name: the reason, in a few words; unique within its table.
        when: whether the rule matches the facts.
        then: what follows.
    """

    name: str
    when: Callable[[_Facts], bool]
    then: _Action


def first_match(rows: tuple[Row[_Facts, _Action], ...], facts: _Facts) -> Row[_Facts, _Action]:
    """
    Return the row that decides.

    Raises:
        LookupError: no row matches; a row for each value of a policy is missing then.
    """
    for row in rows:
        if row.when(facts):
            return row
    raise LookupError(f"no row matches {facts}")
