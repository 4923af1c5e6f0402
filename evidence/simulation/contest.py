"""
Many contenders for one key and nothing wrong: how many bodies run at once under a limit, and how
much of a rate is used.

The same seeds give the same machines, clocks and delays to slots, as shipped, and to a counter on
each node, as npm's redis-semaphore 5.8.0 has it in `RedlockSemaphore`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from greenlet import getcurrent

from celery_redlock.core import Redlock
from celery_redlock.core.limits import Limit, Rate
from celery_redlock.errors import LockNotAcquired
from celery_redlock.protocol.node_model import StoredKey
from celery_redlock.protocol.timing import quorum
from evidence.simulation.limits import KEPT
from evidence.simulation.node import SimNode
from evidence.simulation.plan import Plan, make_plan
from evidence.simulation.scheduler import Machine
from evidence.simulation.world import Outcome, World, carry_out

#: Seeds of a comparison, and seconds of each history.
SEEDS = range(1, 11)
_DURATION = 3.0


@dataclass(frozen=True, slots=True)
class Figures:
    """
    What contenders for one key came to.

    Attributes:
        bodies: how many ran.
        most: of them at once.
        violations: promises of the shipped client that were broken.
    """

    bodies: int
    most: int
    violations: int = 0


class PerNodeCounter:
    """A client of nodes that each admit up to a limit of members; it holds what a quorum admits."""

    def __init__(self, world: Contest, machine: Machine) -> None:
        self._world = world
        self._machine = machine
        self._arrivals = dict.fromkeys(range(len(world.nodes)), 0.0)

    def enter(self, limit: int) -> Callable[[], None] | None:
        """Return how to leave; None if fewer nodes than a quorum admitted it."""
        self._world.members += 1
        member = f"member {self._world.members}"
        admitted = self._ask(lambda node: self._admit(node, member, limit))
        if admitted >= quorum(len(self._world.nodes)):
            return lambda: self._leave(member)
        self._leave(member)
        return None

    def _leave(self, member: str) -> None:
        self._ask(lambda node: node.state.keys.pop(member, None) is not None)

    def _admit(self, node: SimNode, member: str, limit: int) -> bool:
        now_us = node.clock.wall_us()
        if sum(node.state.owner(key, now_us) is not None for key in list(node.state.keys)) >= limit:
            return False
        node.state.keys[member] = StoredKey(member, now_us // 1000 + self._world.plan.ttl * 1000)
        return True

    def _ask(self, do: Callable[[SimNode], bool]) -> int:
        """Let every node do something, in the order of asking; return how many replied yes."""
        task, machine, world = getcurrent(), self._machine, self._world
        ticket, replies = task.ticket, list[bool]()

        def reply(answer: bool) -> None:
            replies.append(answer)
            if len(replies) == len(world.nodes):
                machine.wake(task, ticket)

        def arrive(node: SimNode) -> None:
            delay = world.network.delay(machine, node.index)
            world.scheduler.after(delay, reply, do(node))

        for node in world.nodes:
            sent = world.scheduler.now + world.network.delay(machine, node.index)
            self._arrivals[node.index] = max(self._arrivals[node.index], sent)
            world.scheduler.at(self._arrivals[node.index], arrive, node)
        machine.leave()
        return sum(replies)


class Contest(World):
    """
    A history in which every client does the same.

    Attributes:
        bodies: how many have begun.
        most: of them at once.
        members: how many have asked to be admitted.
    """

    def __init__(self, plan: Plan, *, traced: bool, work: Work) -> None:
        super().__init__(plan, traced=traced)
        self.bodies = self.most = self.members = self._now = 0
        self._work_of_all = work

    def run(self) -> Outcome:
        """Let them contend until the end."""
        for slot in range(len(self.plan.machines)):
            self.machines.append(self._new_machine(slot))
            client = self._client()
            for _ in range(self.plan.threads):
                machine = self.machines[slot]
                machine.spawn(lambda given=(machine, client): self._work_of_all(self, *given))
        self.scheduler.run(self.plan.duration)
        for machine in self.machines:
            machine.kill()
        return Outcome(self.history.violations, self.history.counters, self.lines)

    def body(self, machine: Machine) -> None:
        """Run a body for a while."""
        self.bodies += 1
        self._now += 1
        self.most = max(self.most, self._now)
        machine.wait(machine.random.uniform(0.0, 0.05))
        self._now -= 1


#: What a thread of a client does.
Work = Callable[[Contest, Machine, Redlock], None]


def _contend(world: Contest, machine: Machine, enter: Callable[[], Any]) -> None:
    while True:
        machine.wait(machine.random.expovariate(30.0))
        leave = enter()
        if leave is not None:
            world.body(machine)
            leave()


def by_slots(limit: int) -> Work:
    """Return what the clients do that are shipped."""

    def work(world: Contest, machine: Machine, client: Redlock) -> None:
        def enter() -> Callable[[], None] | None:
            try:
                lease = client.acquire(Limit("limit", limit))
            except LockNotAcquired:
                return None
            hold = world.history.granted(lease, machine)

            def leave() -> None:
                world.history.ended(hold)
                lease.release()

            return leave

        _contend(world, machine, enter)

    return work


def per_node(limit: int) -> Work:
    """Return what the clients do that let each node count."""

    def work(world: Contest, machine: Machine, client: Redlock) -> None:
        counter = PerNodeCounter(world, machine)
        _contend(world, machine, lambda: counter.enter(limit))

    return work


def contest(work: Work, seeds: Iterable[int] = SEEDS, *, nodes: int = 3) -> Figures:
    """Return how many bodies ran at once, at most, in the histories of these seeds."""
    bodies = most = violations = 0
    for seed in seeds:
        world = Contest(_calm(seed, nodes, _DURATION), traced=False, work=work)
        violations += len(carry_out(world.plan, world=world).violations)
        bodies, most = bodies + world.bodies, max(most, world.most)
    return Figures(bodies, most, violations)


def backlog(rate: int, seeds: Iterable[int] = SEEDS) -> tuple[float, int]:
    """
    Let more wait for a rate than get it.

    Returns:
        Which part they get of all that nodes can grant, and how often they get more in a period.
    """
    granted = possible = violations = 0
    for seed in seeds:
        plan = _calm(seed, 3, 4 * _DURATION)
        world = Contest(plan, traced=False, work=_always_waiting(rate))
        violations += len(carry_out(plan, world=world).violations)
        granted += world.bodies
        possible += rate * (1 + int(plan.duration / KEPT))
    return granted / possible, violations


def _always_waiting(rate: int) -> Work:
    def work(world: Contest, machine: Machine, client: Redlock) -> None:
        while True:
            try:
                lease = client.acquire(Rate("rate", f"{rate}/s"), wait=world.plan.duration)
            except LockNotAcquired:
                continue
            world.history.ended(world.history.granted(lease, machine))
            world.bodies += 1
            lease.release()

    return work


def _calm(seed: int, nodes: int, duration: float) -> Plan:
    plan = make_plan(seed, flavour="inside", size=nodes)
    calm = plan.without(())
    return replace(calm, keys=0, limits=(), rates=(), threads=2, duration=duration, unique=False)


def comparison() -> list[str]:
    """Return the figures, a line each."""
    ours, peer = contest(by_slots(2)), contest(per_node(2))
    used, _ = backlog(5, SEEDS[:5])
    return [
        f"limit of 2, 3 nodes, {len(SEEDS)} seeds: at most {ours.most} bodies at once by slots "
        f"({ours.bodies} ran), at most {peer.most} with a counter on each node ({peer.bodies} ran)",
        f"rate of 5/s, 3 nodes, always some that wait: {used:.0%} of what nodes can grant is used",
    ]
