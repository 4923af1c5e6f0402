"""
The life of unique tasks: messages that carry a lock, workers that take it over, and what follows.

The broker delivers at least once: a message may be there again while, or after, it is worked on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redlock.core import ReleaseAction, Reservation
from celery_redlock.errors import LeaseLost, LockContended

if TYPE_CHECKING:
    from celery_redlock.core import Lease, PendingReservation, Redlock
    from tests.simulation.history import Hold
    from tests.simulation.scheduler import Machine
    from tests.simulation.world import World

#: Labels in owner values.
_QUEUED, _FINISHED = "queued", "finished"

#: How long a finished marker lasts in ms: longer than any history.
_REMEMBERED = 3_600_000

#: A broker forgets the oldest of more messages; their locks end by themselves.
_MOST = 40


@dataclass(frozen=True, slots=True)
class Message:
    """
    A message on its way.

    Attributes:
        key: lock key of the task.
        mark: place of the mark that copies of this message share.
        reservation: the lock that it carries, if any.
    """

    key: str
    mark: str
    reservation: Reservation | None


@dataclass(slots=True)
class Broker:
    """What is queued."""

    messages: list[Message] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def new_mark(self) -> str:
        return f"redlock-meta:message:{next(self._numbers):032x}"

    def put(self, message: Message) -> None:
        self.messages.append(message)
        del self.messages[:-_MOST]

    def acknowledge(self, message: Message) -> None:
        if message in self.messages:
            self.messages.remove(message)


class UniqueTasks:
    """What one thread of a client process does with unique tasks."""

    def __init__(
        self, world: World, machine: Machine, client: Redlock, modify: Callable[[Hold, float], None]
    ) -> None:
        self._modify = modify
        self._broker = world.broker
        self._history = world.history
        self._machine = machine
        self._client = client
        self._random = machine.random
        self._ttl = world.plan.ttl

    def publish(self, key: str) -> None:
        """Send a task, unless one with its key is on its way."""
        try:
            self._send(key, self._reserve(key))
        except LockContended as exc:
            self._history.contended(exc)
            queued = (exc.holder or "").endswith(_QUEUED)
            if queued and self._random.random() < 0.3:
                self._replace(key, exc)
            elif self._random.random() < 0.1:
                self._broker.put(Message(key, self._broker.new_mark(), None))

    def _replace(self, key: str, error: LockContended) -> None:
        until = self._client.transport.wall_us() / 1_000_000 + max(0.0, error.expires_in or 0.0)
        holder = error.holder or ""
        reserved = self._reserve(key, holder, until)
        if self._random.random() < 0.3:
            self._client.reservations.cancel(
                reserved.reservation, previous=holder, previous_until=until
            )
            self._history.counters["replacement undone"] += 1
        else:
            self._history.counters["replaced"] += 1
            self._send(key, reserved)

    def _reserve(
        self, key: str, previous: str = "", previous_until: float = 0.0
    ) -> PendingReservation:
        return self._client.reservations.reserve(
            (key,),
            ttl=self._ttl,
            grace=self._ttl / 3,
            label=_QUEUED,
            retry_for=self._ttl / 4,
            previous=previous,
            previous_until=previous_until,
        )

    def _send(self, key: str, reserved: PendingReservation) -> None:
        self._machine.wait(self._random.choice((0.0, 0.002, self._ttl / 4)))
        if self._random.random() < 0.1:
            self._client.reservations.cancel(reserved.reservation, wait=self._random.random() < 0.5)
            return
        self._broker.put(Message(key, self._broker.new_mark(), reserved.reservation))
        self._client.reservations.confirm(reserved)
        self._history.counters["reservations"] += 1

    def work(self) -> None:
        """Get a message and do what it says, unless a copy of it has been here."""
        if not self._broker.messages:
            return
        message = self._random.choice(self._broker.messages)
        if self._random.random() < 0.6:
            self._broker.acknowledge(message)
        try:
            lease = self._client.reservations.acquire_for_task(
                (message.key,),
                (message.mark,),
                ttl=self._ttl,
                wait=self._random.choice((0.0, 0.0, self._ttl / 2)),
                reservation=message.reservation,
                give_up_on=lambda error: (error.holder or "").endswith(_FINISHED),
            )
        except LockContended as exc:
            self._history.contended(exc)
            if (exc.holder or "").endswith(_FINISHED):
                self._history.counters["twin ignored"] += 1
                self._broker.acknowledge(message)
            elif message not in self._broker.messages:
                self._broker.put(message)
            return
        self._run(message, lease)

    def _run(self, message: Message, lease: Lease) -> None:
        hold = self._history.granted(lease, self._machine)
        self._history.begins(hold, message.mark)
        if message.reservation is not None:
            self._history.counters["takeover"] += 1
        self._client.watch(lease)
        try:
            self._body(hold)
        except LeaseLost:
            self._history.counters["lost in body"] += 1
        finally:
            self._finish(message, hold)

    def _body(self, hold: Hold) -> None:
        for _ in range(self._random.randrange(1, 4)):
            self._modify(hold, 0.0)
            self._machine.wait(self._ttl * self._random.choice((0.0, 0.01, 0.4)))
            self._history.look(hold)

    def _finish(self, message: Message, hold: Hold) -> None:
        lease, client, chance = hold.lease, self._client, self._random.random()
        self._history.ended(hold)
        marker = client.reservations.new_owner_value(_FINISHED)
        actions = {message.mark: ReleaseAction(_REMEMBERED, marker)}
        if chance < 0.6:
            if lease.release_with(actions):
                self._history.finished(message.mark)
            self._acknowledge(message)
        elif chance < 0.9:
            # A retry: its message is out before the lock is handed on.
            until = client.transport.wall_us() / 1_000_000 + self._ttl
            owner = client.reservations.new_owner_value(_QUEUED)
            onward = Reservation(node_keys=(message.key,), owner=owner, expires_at=until)
            self._broker.put(Message(message.key, self._broker.new_mark(), onward))
            self._machine.wait(self._random.choice((0.0, 0.002)))
            if lease.release_with(actions, onward, grace=self._ttl / 3):
                self._history.finished(message.mark)
                self._history.counters["hand back"] += 1
            self._acknowledge(message)
        else:
            # Rejected: the broker delivers it again, with the lock that it brought.
            lease.release_with({}, message.reservation, grace=self._ttl / 3)
            if message not in self._broker.messages:
                self._broker.put(message)

    def _acknowledge(self, message: Message) -> None:
        """Let the broker forget a message, unless that is lost and it is delivered once more."""
        if self._random.random() < 0.9:
            self._broker.acknowledge(message)
        elif message not in self._broker.messages:
            self._broker.put(message)
