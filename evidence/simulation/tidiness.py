"""
Whether attempts and releases clean up behind them, faults or not: no key of theirs stays on a node
for its TTL, which is chosen far longer than this part of the history. Nor does the lock of a
message whose task has ended stay for longer than its grace.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from celery_redlock.core import Reservation, client_of
from celery_redlock.core.lease import release_with
from celery_redlock.errors import LockNotAcquired

if TYPE_CHECKING:
    from celery_redlock.core import Lease, Redlock
    from evidence.simulation.scheduler import Machine
    from evidence.simulation.world import World

_TTL = 30.0

#: Seconds of contention under faults, of peace in which the client goes on, and of silence.
_TROUBLE, _PEACE, _SILENCE = 1.5, 4.5, 3.0

#: The key of each thread of the client in the peace; the last thread sends messages before. Each
#: may have connections of its own, and all of them are to be used again.
_OTHERS = ("other 0", "other 1", "other 2", "other 3")
*_CONTENDING, _SENDS_FIRST = _OTHERS

_TICK = 0.4

#: How long the lock of a message lasts until it is lengthened, and after how much of the peace no
#: more messages are sent.
_GRACE, _SENDING = 1.0, 2.0


class Tidiness:
    """
    A client that contends on one key while connections break and nodes stall, and then stops.

    It also sends messages with a lock to another one, which takes that over.
    """

    def __init__(
        self, world: World, machine: Machine, client: Redlock, worker: Machine, at_work: Redlock
    ) -> None:
        self._world = world
        self._machine = machine
        self._client = client
        self._worker = worker
        self._at_work = at_work
        self._messages: list[Reservation] = []
        self._handed: set[str] = set()
        self._begun = world.scheduler.now

    def judge(self) -> None:
        """Let it happen, then look what is left."""
        world, begun = self._world, self._begun
        for other in _CONTENDING:
            self._machine.spawn(lambda other=other: self._contend(other))
        self._machine.spawn(self._publish)
        self._worker.spawn(self._work)
        rng = self._machine.random
        for _ in range(rng.randrange(8)):
            world.scheduler.at(begun + rng.uniform(0.0, _TROUBLE), self._trouble)
        world.scheduler.run(begun + _TROUBLE + _PEACE + _SILENCE, lambda: bool(self._broken))
        for node in world.nodes:
            now_us = node.clock.wall_us()
            ours = self._machine.owners | self._worker.owners | self._handed
            for key in ("tidy", "message", "worker", *_OTHERS):
                owner = node.state.owner(key, now_us)
                if owner is not None and owner in ours:
                    world.history.violate(
                        "left behind", f"{key} of {owner[:8]} is still on node {node.index}"
                    )

    @property
    def _broken(self) -> bool:
        return bool(self._world.history.violations)

    def _trouble(self) -> None:
        world, rng = self._world, self._machine.random
        node, kind = rng.choice(world.nodes), rng.choice(("break", "stop", "cut", "slow"))
        world.trace(f"trouble at node {node.index}: {kind}")
        now, until = world.scheduler.now, self._begun + _TROUBLE
        until = min(until, now + rng.expovariate(4.0))
        machine = rng.choice((self._machine, self._worker))
        if kind == "break":
            for wire in world.network.wires(machine, node.index):
                wire.break_off(rng.random() * world.plan.delay * 2)
        elif kind == "stop":
            node.stop(until)
        elif kind == "cut":
            world.network.cut(machine, node.index, until)
        else:
            extra = world.plan.node_timeout * rng.uniform(0.2, 2.0)
            world.network.slow(machine, node.index, until, extra)

    def _passed(self) -> float:
        return self._world.scheduler.now - self._begun

    def _until_tick(self) -> float:
        now = self._world.scheduler.now
        return (int(now / _TICK) + 1) * _TICK - now

    def _publish(self) -> None:
        rng, client = self._machine.random, self._client
        while self._passed() < _TROUBLE + _SENDING:
            try:
                reserved = client_of(client).reserve(
                    ("message",), ttl=_TTL, grace=_GRACE, label="queued", retry_for=0.0
                )
            except LockNotAcquired:
                self._machine.wait(rng.expovariate(30.0))
                continue
            self._messages.append(reserved.reservation)
            self._machine.wait(rng.choice((0.0, 0.002, 0.1)))
            client_of(client).confirm(reserved)
            self._world.history.counters["tidy message"] += 1
        self._contend(_SENDS_FIRST)

    def _work(self) -> None:
        rng = self._worker.random
        while self._passed() < _TROUBLE + _PEACE:
            lease = self._taken() if self._messages else None
            if lease is None:
                # As a worker requeues: another message's lock may stand in the way of the first.
                self._messages = [*self._messages[1:], *self._messages[:1]]
                if self._messages or self._passed() < _TROUBLE + _SENDING:
                    self._worker.wait(rng.expovariate(100.0))
                else:
                    # In touch with the nodes: what they have not taken yet is sent then.
                    self._worker.wait(self._until_tick())
                    with contextlib.suppress(LockNotAcquired):
                        self._at_work.acquire("worker", ttl=_TTL).release()
                continue
            del self._messages[0]
            self._worker.wait(rng.choice((0.0, 0.005)))
            onward = None
            if rng.random() < 0.3:
                until = client_of(self._at_work).transport.wall_us() / 1_000_000 + _TTL
                owner = client_of(self._at_work).new_owner_value("queued")
                self._handed.add(owner)
                onward = Reservation(node_keys=("message",), owner=owner, expires_at=until)
                self._messages.append(onward)
            release_with(lease, {}, onward, grace=_GRACE)

    def _taken(self) -> Lease | None:
        try:
            return client_of(self._at_work).acquire_for_task(
                ("message",), ttl=_TTL, reservation=self._messages[0]
            )
        except LockNotAcquired:
            return None

    def _contend(self, other: str) -> None:
        rng, scheduler = self._machine.random, self._world.scheduler
        while (passed := scheduler.now - self._begun) < _TROUBLE + _PEACE:
            in_peace = passed > _TROUBLE
            try:
                lease = self._client.acquire(other if in_peace else "tidy", ttl=_TTL)
                self._world.history.ended(self._world.history.granted(lease, self._machine))
                self._machine.wait(rng.choice((0.0, 0.005)))
                lease.release()
            except LockNotAcquired:
                pass
            if in_peace:
                # All at once, so that every connection is used again: a break that nobody has met
                # yet is noticed then, and what was lost in it is said again.
                self._machine.wait(self._until_tick())
            else:
                self._machine.wait(rng.expovariate(30.0))
