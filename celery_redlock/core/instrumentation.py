"""
Reports of what happens to locks in this process, for metrics, logs and traces, and notes of them.

Each event is one frozen details object. Without a receiver an event costs one truth test.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from celery_redlock._greenlets.threads import call_in_app, register_at_fork
from celery_redlock._greenlets.unpatched import native_lock, on_native_thread
from celery_redlock._log import event_logger
from celery_redlock.errors import LossReason

_logger = event_logger(__name__)

#: Most `LeaseNotes` that are kept: the note of a lease dropped without a release is never taken.
MOST_LEASES = 10_000

Note = TypeVar("Note")


class Outcome(StrEnum):
    """How a call to acquire or extend a lock ended."""

    GRANTED = "granted"  #: a quorum of nodes has the keys, in time
    CONTENDED = "contended"  #: another owner has a key on a quorum
    SPLIT = "split"  #: several contenders share the nodes
    GONE = "gone"  #: a quorum of nodes no longer has the keys
    UNAVAILABLE = "unavailable"  #: too few nodes answered, or too late


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireDetails:
    """
    A call to acquire a lock, or to reserve keys for a message, has ended.

    Attributes:
        keys: the lock keys; for a reservation also its records: a dedupe marker under its name on
            the nodes, any other under the lock key to which it belongs.
        outcome: how the last attempt ended.
        waited: seconds from the first attempt to the end.
        attempts: how many there were.
        votes: each node's answer to the last attempt: `granted`, `acknowledged`, `refused`,
            `quarantined`, `failed`, or `none` if the attempt was decided without it.
        fencing_token: the lease's; None if the lock was not granted.
        owner: the owner value of the last attempt; no other lease has it.
        reserves: whether the keys are for a message, so that there is no lease.
    """

    keys: tuple[str, ...]
    outcome: Outcome
    waited: float
    attempts: int
    votes: Mapping[str, str]
    fencing_token: int | None
    owner: str
    reserves: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendDetails:
    """
    The nodes were asked to extend a lease.

    Attributes:
        keys: the lease's keys.
        fencing_token: the lease's.
        outcome: how it ended.
        expires_in: seconds for which the lease is valid afterwards.
    """

    keys: tuple[str, ...]
    fencing_token: int
    outcome: Outcome
    expires_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDetails:
    """
    A lease was lost.

    Attributes:
        keys: the lease's keys.
        fencing_token: the lease's.
        reason: why.
        held_for: seconds since the lock was acquired.
        owner: the lease's owner value, as when it was acquired.
    """

    keys: tuple[str, ...]
    fencing_token: int
    reason: LossReason
    held_for: float
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDetails:
    """
    A release of a lease was sent.

    It may be reported up to about a second later, and from another thread.

    Attributes:
        keys: the lease's keys, without those that were released before.
        fencing_token: the lease's.
        held: the lease was valid, and a quorum of nodes still had its keys.
        held_for: seconds from the acquire to the release.
        owner: the lease's owner value, as when it was acquired.
    """

    keys: tuple[str, ...]
    fencing_token: int
    held: bool
    held_for: float
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineDetails:
    """
    A node refused to vote because it restarted, lost data or changed its role.

    Each call to acquire whose last attempt got this refusal reports it; a call that other nodes
    decided first does not.

    Attributes:
        node: the node, without user and password.
        remaining: seconds until it votes again.
    """

    node: str
    remaining: float


Details = AcquireDetails | ExtendDetails | LossDetails | ReleaseDetails | QuarantineDetails
Receiver = Callable[[Details], object]

#: Replaced whole, so that it can be read without a lock.
receivers: tuple[Receiver, ...] = ()

_lock = native_lock()


def observe(receiver: Receiver) -> Callable[[], None]:
    """
    Report every event of this process to `receiver`; return a function that stops it.

    Receivers are called at once, in the thread or greenlet in which the event happens. For
    extensions and losses, this is usually the watchdog's thread, or under gevent and eventlet a
    greenlet. So a receiver must be short and must not block: no lease is extended in that time. An
    `Exception` raised in it, even by a signal handler, is logged and not raised again. Any other
    `BaseException` is raised in the reported call, which then keeps no lock; in the watchdog's
    thread it is logged. A forked child keeps the receivers.
    """
    global receivers  # one set of receivers for a process is the point

    # An entry of its own for each call: the same receiver may be registered twice.
    def entry(details: Details) -> None:
        receiver(details)

    with _lock:
        receivers = (*receivers, entry)

    def forget() -> None:
        global receivers
        with _lock:
            receivers = tuple(other for other in receivers if other is not entry)

    return forget


def report(details: Details) -> None:
    """
    Call every receiver. Raises only interrupts: a `BaseException` that is no `Exception`.

    So a caller reports when its own work is done.
    """
    for receiver in receivers:
        call_in_app(_deliver, receiver, details)


def _deliver(receiver: Receiver, details: Details) -> None:
    try:
        receiver(details)
    except BaseException as exc:
        # A native thread works for all leases, and has no caller to interrupt.
        if not isinstance(exc, Exception) and not on_native_thread():
            raise
        _logger.exception(
            "observer-failed",
            "A receiver of %(report)s failed",
            report=type(details).__name__,
        )


def nodes_without_service(details: AcquireDetails) -> list[str]:
    """Return the nodes that failed in the last attempt, or were quarantined."""
    return [node for node, vote in details.votes.items() if vote in ("failed", "quarantined")]


class LeaseNotes(Generic[Note]):
    """
    One note about each lease, from its acquire to its loss or release.

    Limit: beyond `MOST_LEASES` the oldest notes are dropped. Usable from any thread.
    """

    def __init__(self) -> None:
        self._notes: OrderedDict[str, Note] = OrderedDict()

    def add(self, owner: str, note: Note) -> None:
        """Keep a note of the lease with this owner value."""
        self._notes[owner] = note
        if len(self._notes) > MOST_LEASES:
            self._notes.popitem(last=False)

    def take(self, owner: str) -> Note | None:
        """Return the note of a lease, once; None where there is none."""
        return self._notes.pop(owner, None)


def _reset_after_fork() -> None:
    global _lock  # another thread of the parent may have held it
    _lock = native_lock()


register_at_fork(after_in_child=_reset_after_fork)
