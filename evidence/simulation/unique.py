"""
The life of unique tasks: messages that carry a lock, workers that take it over, and what follows.

The broker delivers at least once: a message may be there again while, or after, it is worked on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from celery_redlock.core import ReleaseAction, Reservation, client_of
from celery_redlock.core.failures import Refusal
from celery_redlock.core.lease import release_with
from celery_redlock.core.waiting import After
from celery_redlock.errors import LeaseLost, LockContended
from celery_redlock.protocol.keys import Key
from celery_redlock.tasks.rules import arrival, ending, publish
from celery_redlock.tasks.rules.arrival import Action
from celery_redlock.tasks.rules.facts import DuplicatePolicy, Holder, Obstacle, Raised, Role
from celery_redlock.tasks.rules.publish import Publish
from evidence.models.facts import CONTENTION, DUPLICATE, ENDED, REMAINS

if TYPE_CHECKING:
    from celery_redlock.core import Lease, PendingReservation, Redlock
    from evidence.simulation.history import Hold
    from evidence.simulation.scheduler import Machine
    from evidence.simulation.world import World

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
        task: its task id, which a retry keeps.
    """

    key: str
    mark: str
    reservation: Reservation | None
    task: str


@dataclass(slots=True)
class Broker:
    """What is queued."""

    messages: list[Message] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def new_mark(self) -> str:
        return f"redlock-meta:message:{next(self._numbers):032x}"

    def new_task(self) -> str:
        return f"task-{next(self._numbers)}"

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
        """Send a task, unless the rules say that one with its key stands for it."""
        task = self._broker.new_task()
        try:
            self._send(key, task, self._reserve(key, task))
        except LockContended as exc:
            self._history.contended(exc)
            action = self._on_publish_contention(exc)
            if action is Publish.REPLACE:
                self._replace(key, task, exc)
            elif action not in (Publish.DROP, Publish.REFUSE):
                self._broker.put(Message(key, self._broker.new_mark(), None, task))

    def _on_publish_contention(self, error: LockContended) -> Publish:
        holder, role = _parse(error.holder)
        newest = role is Role.QUEUED and self._random.random() < 0.3
        facts = replace(
            DUPLICATE,
            split=error.split,
            holder=Holder.FOREIGN if holder is None else Holder.OTHER,
            role=role,
            has_dependents=not newest and self._random.random() < 0.1,
            policy=DuplicatePolicy.REPLACE if newest else DuplicatePolicy.EXISTING,
        )
        return publish.on_duplicate(facts)

    def _replace(self, key: str, task: str, error: LockContended) -> None:
        now = client_of(self._client).transport.wall_us() / 1_000_000
        until = now + max(0.0, error.expires_in or 0.0)
        older = Reservation(node_keys=(), owner=error.holder or "", expires_at=until)
        reserved = self._reserve(key, task, older)
        if self._random.random() < 0.3:
            client_of(self._client).cancel(reserved.reservation, previous=older)
            self._history.counters["replacement undone"] += 1
        else:
            self._history.counters["replaced"] += 1
            self._send(key, task, reserved)

    def _reserve(
        self, key: str, task: str, previous: Reservation | None = None
    ) -> PendingReservation:
        return client_of(self._client).reserve(
            (key,),
            ttl=self._ttl,
            grace=self._ttl / 3,
            label=_label(task, Role.QUEUED),
            retry_for=self._ttl / 4,
            previous=previous,
        )

    def _send(self, key: str, task: str, reserved: PendingReservation) -> None:
        self._machine.wait(self._random.choice((0.0, 0.002, self._ttl / 4)))
        if self._random.random() < 0.1:
            client_of(self._client).cancel(reserved.reservation, wait=self._random.random() < 0.5)
            return
        self._broker.put(Message(key, self._broker.new_mark(), reserved.reservation, task))
        client_of(self._client).confirm(reserved)
        self._history.counters["reservations"] += 1

    def work(self) -> None:
        """Get a message and do what it says, unless a copy of it has been here."""
        if not self._broker.messages:
            return
        message = self._random.choice(self._broker.messages)
        if self._random.random() < 0.6:
            self._broker.acknowledge(message)
        try:
            lease = client_of(self._client).acquire_for_task(
                (message.key,),
                (message.mark,),
                ttl=self._ttl,
                wait=self._random.choice((0.0, 0.0, self._ttl / 2)),
                reservation=message.reservation,
                decide=lambda refusal: (
                    After.END
                    if arrival.is_final(self._contention(message, refusal))
                    else After.WAIT
                ),
                label=_label(message.task, Role.RUNNING),
            )
        except LockContended as exc:
            self._history.contended(exc)
            action = arrival.on_contention(self._contention(message, exc))
            if action in (Action.IGNORE, Action.SKIP):
                self._history.counters["twin ignored"] += action is Action.IGNORE
                self._broker.acknowledge(message)
            elif message not in self._broker.messages:
                self._broker.put(message)
            return
        self._run(message, lease)

    def _contention(self, message: Message, error: LockContended | Refusal) -> arrival.Contention:
        holder, role = _parse(error.holder)
        who = Holder.FOREIGN if holder is None else Holder.OTHER
        return replace(
            CONTENTION,
            obstacle=Obstacle.MARKER if error.key == message.mark else Obstacle.RESERVED,
            split=error.split,
            holder=Holder.ITSELF if holder == message.task else who,
            role=role,
            brought_lock=message.reservation is not None,
            may_have_begun=message.reservation is not None,
        )

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
        rejected, retries = chance >= 0.9, 0.6 <= chance < 0.9
        state = ending.moved(ending.State.WAITING, ending.Move.BEGIN)
        onward = None
        if retries:
            # Its message is out before the lock is handed over.
            until = client_of(client).transport.wall_us() / 1_000_000 + self._ttl
            owner = client_of(client).new_owner_value(_label(message.task, Role.QUEUED))
            onward = Reservation(node_keys=(message.key,), owner=owner, expires_at=until)
            retry = Message(message.key, self._broker.new_mark(), onward, message.task)
            self._broker.put(retry)
            self._machine.wait(self._random.choice((0.0, 0.002)))
            state = ending.moved(state, ending.Move.HAND_OVER)
        remains = _remains(state, message, rejected=rejected)
        role, keys = ending.marker_after(remains), ending.keys_after(remains)
        actions = {}
        if role is not None:
            marker = client_of(client).new_owner_value(_label(message.task, role))
            actions[Key.read(message.mark)] = ReleaseAction(_REMEMBERED, marker)
        successor = {
            ending.Keys.HAND_OVER: onward,
            ending.Keys.GIVE_BACK: message.reservation,
        }.get(keys)
        if release_with(lease, actions, successor, grace=self._ttl / 3) and actions:
            self._history.finished(message.mark)
            self._history.counters["hand back"] += retries
        if not rejected:
            self._acknowledge(message)
        elif message not in self._broker.messages:
            self._broker.put(message)

    def _acknowledge(self, message: Message) -> None:
        """Let the broker forget a message, unless that is lost and it is delivered once more."""
        if self._random.random() < 0.9:
            self._broker.acknowledge(message)
        elif message not in self._broker.messages:
            self._broker.put(message)


def _label(task: str, role: Role) -> str:
    return f"{task} {role}"


def _parse(owner: str | None) -> tuple[str | None, Role]:
    """Return the task and the role in an owner value; none where something else holds the key."""
    words = (owner or "").split(" ")
    if len(words) < 2 or words[-1] not in {role.value for role in Role}:
        return None, Role.QUEUED
    return words[-2], Role(words[-1])


def _remains(state: ending.State, message: Message, *, rejected: bool) -> ending.Remains:
    ended = replace(
        ENDED,
        state=state,
        celery_state=ending.CeleryState.REJECTED if rejected else ending.CeleryState.SUCCESS,
        rejection=Raised.REJECT_TO_QUEUE if rejected else Raised.NOTHING,
        retry_is_out=state is ending.State.HANDED_OVER,
    )
    return replace(
        REMAINS,
        ending=ending.ending_of(ended),
        state=state,
        can_give_back=message.reservation is not None,
    )
