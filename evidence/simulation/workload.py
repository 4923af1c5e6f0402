"""
What the clients do: short holds, long ones that are watched, extensions, several keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from greenlet import getcurrent

from celery_redlock.core.lease import holding_of
from celery_redlock.core.limits import Limit, Rate
from celery_redlock.errors import LeaseLost, LockContended, LockNotAcquired, QuorumUnavailable
from evidence.simulation.unique import UniqueTasks

if TYPE_CHECKING:
    from celery_redlock.core import Lease, Redlock
    from evidence.simulation.history import Hold
    from evidence.simulation.scheduler import Machine
    from evidence.simulation.world import World

#: What a lock is asked for.
Keys: TypeAlias = str | Limit | Rate | tuple[str | Limit | Rate, ...]


class Worker:
    """One thread of a client process."""

    def __init__(self, world: World, machine: Machine, client: Redlock) -> None:
        self._world = world
        self._history = world.history
        self._machine = machine
        self._client = client
        self._random = machine.random
        self._ttl = world.plan.ttl
        #: for how many TTLs a lease is watched
        self._spans = (0.4, 1.0, 2.5, 10.0) if world.plan.replicas else (0.4, 1.0, 2.5)
        self._unique = UniqueTasks(world, machine, client, self._modify)

    def run(self) -> None:
        """Work until the history ends."""
        rng = self._random
        while True:
            self._machine.wait(rng.expovariate(60.0))
            if self._world.plan.unique and rng.random() < 0.5:
                self._deal_with_messages()
                continue
            keys = self._some_limited() if self._is_for_limits() else self._some_keys()
            wait = rng.choice((0.0,) * 8 + (0.05, self._ttl / 2))
            style = rng.random()
            try:
                if style < 0.78:
                    self._short(keys, wait)
                elif style < 0.88:
                    self._extended(keys, wait)
                else:
                    self._watched(keys, wait)
            except LockContended as exc:
                self._history.contended(exc)
                self._machine.wait(self._ttl * rng.uniform(0.0, 0.5))
            except QuorumUnavailable:
                self._history.counters["unavailable"] += 1
                self._machine.wait(self._ttl * rng.uniform(0.2, 1.0))
            except LeaseLost:
                self._history.counters["lost in body"] += 1

    def _deal_with_messages(self) -> None:
        try:
            if self._random.random() < 0.4:
                self._unique.publish(self._random.choice(self._world.keys))
            else:
                self._unique.work()
        except LockNotAcquired:
            self._history.counters["unavailable"] += 1
            self._machine.wait(self._ttl * self._random.uniform(0.2, 1.0))

    def _some_keys(self) -> str | tuple[str, ...]:
        names = self._world.keys
        if len(names) > 1 and self._random.random() < 0.06:
            return tuple(self._random.sample(names, 2))
        return self._random.choice(names)

    def _is_for_limits(self) -> bool:
        return bool(self._world.limits) and self._random.random() < 0.3

    def _some_limited(self) -> Keys:
        """Return a key with a limit or a rate, now and then with other keys."""
        world, rng = self._world, self._random
        if world.rates and rng.random() < 0.3:
            rate = rng.choice(world.rates)
            return rate if rng.random() < 0.6 else (rng.choice(world.limits), rate)
        if rng.random() < 0.1:
            return (rng.choice(world.keys), *rng.sample(world.limits, len(world.limits)))
        return rng.choice(world.limits)

    def _short(self, keys: Keys, wait: float) -> None:
        keep = self._ttl / 4 if self._random.random() < 0.02 else 0.0
        lease = self._client.acquire(keys, ttl=self._ttl, wait=wait, at_least_for=keep)
        hold = self._history.granted(lease, self._machine)
        pause = self._random.choice((0.0, 0.002, 0.01))
        if self._random.random() < 0.02:
            pause = self._ttl * self._random.uniform(0.5, 1.5)
        self._modify(hold, pause)
        self._release(hold)

    def _extended(self, keys: Keys, wait: float) -> None:
        lease = self._client.acquire(keys, ttl=self._ttl, wait=wait)
        hold = self._history.granted(lease, self._machine)
        try:
            for _ in range(self._random.randrange(1, 4)):
                self._machine.wait(self._ttl * self._random.choice((0.05, 0.3, 0.9)))
                lease.extend()
                self._history.look(hold)
                self._modify(hold, 0.0)
        finally:
            self._release(hold)

    def _watched(self, keys: Keys, wait: float) -> None:
        holds: list[Hold] = []

        def on_lost(lease: Lease) -> None:
            late_by = self._machine.peek() - holding_of(lease).valid_until
            self._history.lost(holds[0], lease.lost or "", late_by=late_by)

        with self._client.lock(keys, ttl=self._ttl, wait=wait, on_lost=on_lost) as lease:
            holds.append(self._history.granted(lease, self._machine))
            until = self._machine.peek() + self._ttl * self._random.choice(self._spans)
            try:
                while self._machine.peek() < until and lease.is_valid:
                    self._modify(holds[0], self._ttl * 0.1)
                    self._history.look(holds[0])
                    self._machine.wait(self._ttl * 0.1)
            finally:
                self._history.ended(holds[0])

    def _release(self, hold: Hold) -> None:
        self._history.ended(hold)
        self._world.trace(f"{self._machine.name} releases {hold.token}")
        hold.lease.release(wait=hold.token % 3 > 0)

    def _modify(self, hold: Hold, pause: float) -> None:
        """Read, modify, write what it holds; one in three does not look whether it still may."""
        if not hold.keys:
            return
        guarded, bare = self._world.resources[hold.keys[0]]
        token = hold.token
        value = self._call(guarded.read, token)
        plain = bare.read(token)
        if pause:
            self._machine.wait(pause)
        if self._random.random() < 0.67 and not hold.lease.is_valid:
            return
        if value is not None:
            self._call(guarded.write, token, value + 1)
        bare.write(token, plain + 1)

    def _call(self, do: Callable[..., Any], *args: Any) -> Any:
        """Ask a resource across the network; what is under way arrives whatever becomes of us."""
        task, scheduler = getcurrent(), self._world.scheduler
        there, back = (self._random.uniform(0.0001, 0.002) for _ in range(2))
        answer: list[Any] = []
        ticket = task.ticket

        def arrive() -> None:
            answer.append(do(*args))
            scheduler.after(back, self._machine.wake, task, ticket)

        scheduler.after(there, arrive)
        self._machine.leave()
        return answer[0]
