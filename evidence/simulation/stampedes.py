"""
Many publishers of one key at one moment, in processes that get the processor late.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace

from celery_redlock.core import Redlock, client_of
from celery_redlock.core.validation import checked_keys
from celery_redlock.errors import LockContended, QuorumUnavailable
from celery_redlock.protocol.commands import acquire
from celery_redlock.protocol.keys import owner_value
from evidence.simulation.contest import Contest
from evidence.simulation.node import SimNode
from evidence.simulation.plan import Plan, make_plan
from evidence.simulation.scheduler import Machine, Task
from evidence.simulation.world import carry_out

#: Seconds of retries, as publishers have them.
_RETRY_FOR = 4.0

#: Seconds from a process to a node: on a busy machine nodes are late as well, each for itself.
_DELAY = 0.05

#: When they have connected, and when they have ended, however late they are.
_BEGIN, _END = 5.0, 300.0


class LateMachine(Machine):
    """
    A process that goes on some time after something has woken it.

    Attributes:
        turn: the mean of that time, in seconds; 0: at once.
    """

    turn = 0.0

    def wake(self, task: Task, ticket: int) -> None:
        if self.turn:
            late = self.random.expovariate(1 / self.turn)
            self.scheduler.after(late, super().wake, task, ticket)
        else:
            super().wake(task, ticket)


class Stampede(Contest):
    """A history in which each client reserves the same key once."""

    def _new_machine(self, slot: int) -> Machine:
        made = super()._new_machine(slot)
        rate, wall = self.plan.machines[slot]
        return LateMachine(self.scheduler, made.name, f"{self.plan.seed} {made.name}", rate, wall)


def stampede(
    seed: int, *, turn: float, publishers: int = 100, left: int = 0, down: int = 0
) -> Counter[str]:
    """
    Let publishers reserve one key at once.

    Args:
        seed: of all randomness.
        turn: seconds that a process waits for the processor each time, on average.
        publishers: how many.
        left: on how many nodes one that was killed before they began has the key until the end.
        down: how many other nodes are down.

    Returns:
        How many got the key, found out who has it, and ended otherwise.
    """
    outcomes: Counter[str] = Counter()

    def work(world: Contest, machine: Machine, client: Redlock) -> None:
        assert isinstance(machine, LateMachine)
        while world.scheduler.now < _BEGIN:
            with contextlib.suppress(QuorumUnavailable):  # it connects meanwhile
                client.holder(f"warm-up {machine.name}")
            machine.wait(1.0)
        machine.turn = turn
        try:
            client_of(client).reserve(
                ["key"], ttl=600.0, grace=600.0, label="queued", retry_for=_RETRY_FOR
            )
            outcomes["got it"] += 1
        except LockContended as error:
            outcomes["undecided" if error.split else "knows who"] += 1
        except QuorumUnavailable:
            outcomes["no quorum"] += 1

    plan = _plan(seed, publishers)
    world = Stampede(plan, traced=False, work=work)
    for node in world.nodes[:left]:
        _hold(node)
    for node in world.nodes[left : left + down]:
        world.scheduler.at(_BEGIN, node.crash)
    carry_out(plan, world=world)
    return outcomes


def _hold(node: SimNode) -> None:
    now_us = node.clock.wall_us()
    killed = owner_value(bytes(16), 1, "killed")
    node.state.run(acquire(checked_keys("", "key"), killed, 600_000, now_us, 0), now_us)


def _plan(seed: int, publishers: int) -> Plan:
    plan = make_plan(seed, flavour="inside", size=5).without(())
    machines = tuple(plan.machines[at % len(plan.machines)] for at in range(publishers))
    return replace(
        plan,
        machines=machines,
        threads=1,
        keys=0,
        limits=(),
        rates=(),
        unique=False,
        duration=_END,
        ttl=30.0,
        max_ttl=600.0,
        delay=_DELAY,
        node_timeout=0.2,
        guard=False,
    )
