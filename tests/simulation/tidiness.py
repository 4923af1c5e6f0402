"""
Whether attempts and releases clean up behind them, faults or not: no key of theirs stays on a node
for its TTL, which is chosen far longer than this part of the history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.errors import LockNotAcquired

if TYPE_CHECKING:
    from celery_redlock.core import Redlock
    from tests.simulation.scheduler import Machine
    from tests.simulation.world import World

_TTL = 30.0

#: Seconds of contention under faults, of peace in which the client goes on, and of silence.
_TROUBLE, _PEACE, _SILENCE = 1.5, 4.5, 3.0

_THREADS = 3

_TICK = 0.4


class Tidiness:
    """A client that contends on one key while connections break and nodes stall, and then stops."""

    def __init__(self, world: World, machine: Machine, client: Redlock) -> None:
        self._world = world
        self._machine = machine
        self._client = client
        self._begun = world.scheduler.now

    def judge(self) -> None:
        """Let it happen, then look what is left."""
        world, begun = self._world, self._begun
        for number in range(_THREADS):
            self._machine.spawn(lambda number=number: self._contend(f"other {number}"))
        rng = self._machine.random
        for _ in range(rng.randrange(8)):
            world.scheduler.at(begun + rng.uniform(0.0, _TROUBLE), self._trouble)
        world.scheduler.run(begun + _TROUBLE + _PEACE + _SILENCE, lambda: bool(self._broken))
        for node in world.nodes:
            now_us = node.clock.wall_us()
            for key in ("tidy", *(f"other {number}" for number in range(_THREADS))):
                owner = node.state.owner(key, now_us)
                if owner is not None and owner in self._machine.owners:
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
        if kind == "break":
            for wire in world.network.wires(self._machine, node.index):
                wire.break_off(rng.random() * world.plan.delay * 2)
        elif kind == "stop":
            node.stop(until)
        elif kind == "cut":
            world.network.cut(self._machine, node.index, until)
        else:
            extra = world.plan.node_timeout * rng.uniform(0.2, 2.0)
            world.network.slow(self._machine, node.index, until, extra)

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
                tick = (int(scheduler.now / _TICK) + 1) * _TICK
                self._machine.wait(tick - scheduler.now)
            else:
                self._machine.wait(rng.expovariate(30.0))
