"""
A plan: everything that a history depends on, in a form that can be kept, printed and made smaller.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """
    One thing that goes wrong.

    Attributes:
        at: true time.
        kind: see `faults.py`.
        node: position, where a node is concerned.
        machine: position, where a client process is concerned.
        sentinel: position, where a Sentinel is concerned.
        seconds: how long it lasts, how far a clock is stepped, how much slower a link is.
        detail: data kept by a crash, and the like.
        count: clock readings until a stop.
    """

    at: float
    kind: str
    node: int = -1
    machine: int = -1
    sentinel: int = -1
    seconds: float = 0.0
    detail: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    One history to be.

    Attributes:
        seed: of all randomness that is not spelled out here.
        flavour: `inside` the assumptions, or which of them is broken.
        nodes: (rate, wall offset) of each.
        machines: (rate, wall offset) of each client process.
        replicas: (rate, wall offset) of the second servers of the first nodes, which fail over.
        threads: of each client process.
        keys: how many.
        duration: seconds of true time before everything is healed.
        ttl, max_ttl, takeover, drift_factor, node_timeout, guard: as `Redlock` takes them.
        delay: typical one-way delay of the network.
        buffer: bytes that a socket takes while the node does not read.
        unique: part of the work is sent in messages that carry locks.
        limits: part of the work is for keys that so many each may hold.
        rates: part of it is for keys that so many each may get in a second.
        faults: what goes wrong.
    """

    seed: int
    flavour: str
    nodes: tuple[tuple[float, float], ...]
    machines: tuple[tuple[float, float], ...]
    threads: int
    keys: int
    duration: float
    ttl: float
    max_ttl: float
    takeover: float = 0.0
    drift_factor: float = 0.01
    node_timeout: float = 0.1
    guard: bool = True
    delay: float = 0.001
    buffer: int = 1_000_000
    unique: bool = False
    limits: tuple[int, ...] = ()
    rates: tuple[int, ...] = ()
    replicas: tuple[tuple[float, float], ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def servers(self) -> tuple[tuple[float, float], ...]:
        """The clocks of all servers that may vote."""
        return (*self.nodes, *self.replicas)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        faults = tuple(Fault(**fault) for fault in data["faults"])
        clocks = {
            name: tuple(map(tuple, data.get(name, ())))
            for name in ("nodes", "machines", "replicas")
        }
        numbers = {name: tuple(data.get(name, ())) for name in ("limits", "rates")}
        return cls(**{**data, **clocks, **numbers, "faults": faults})

    def without(self, faults: tuple[Fault, ...]) -> Plan:
        return replace(self, faults=faults)


#: How many Sentinels watch the nodes that fail over.
SENTINELS = 3

#: Ways in which the assumptions are broken on purpose, to see that the checkers see.
OUTSIDE = ("fast nodes", "slow clients", "no guard", "node clocks stepped")

_SIZES = (3, 5, 5, 3, 1, 4, 7, 5, 3, 5)

_NODE_FAULTS = ("crash", "crash", "crash", "stop", "flush", "flip", "script flush")
_LINK_FAULTS = ("break", "break", "partition", "slow", "slow")
_MACHINE_FAULTS = (
    *("pause", "pause", "suspend", "kill", "wall step", "wall step"),
    *("isolate", "isolate"),
)


def make_plan(seed: int, flavour: str | None = None, size: int | None = None) -> Plan:
    """Draw a plan from a seed."""
    rng = random.Random(f"plan {seed}")
    if flavour is None:
        flavour = rng.choice(OUTSIDE) if rng.random() < 0.15 else "inside"
    size = size or rng.choice(_SIZES)
    ttl = rng.choice((0.4, 0.6, 1.0, 1.5))
    max_ttl = ttl * rng.choice((1.0, 1.5, 2.0))
    # Half the drift allowance on each side is what the allowance is for.
    wrong = 0.0049 if rng.random() < 0.7 else 0.0
    skew = max_ttl / 5 * rng.choice((0.0, 0.3, 1.0, 1.0, 1.0))
    duration = rng.uniform(15.0, 30.0)

    def clock() -> tuple[float, float]:
        return 1.0 + rng.uniform(-wrong, wrong), rng.uniform(-skew, skew)

    nodes = [clock() for _ in range(size)]
    machines = [clock() for _ in range(rng.choice((2, 3, 4)))]
    if flavour == "fast nodes":
        nodes = [(rng.uniform(1.5, 4.0), wall) for _, wall in nodes]
    if flavour == "slow clients":
        machines = [(rng.choice((1.0, 0.3, 0.5)), wall) for _, wall in machines]
    guard = flavour != "no guard" and (size > 1 or rng.random() < 0.5)
    plan = Plan(
        seed=seed,
        flavour=flavour,
        nodes=tuple(nodes),
        machines=tuple(machines),
        threads=rng.choice((1, 2, 3)),
        keys=rng.choice((3, 12, 24, 40)),
        duration=duration,
        ttl=ttl,
        max_ttl=max_ttl,
        node_timeout=rng.choice((0.05, 0.1, 0.2)),
        guard=guard,
        delay=rng.choice((0.0002, 0.001, 0.004)),
        buffer=rng.choice((1_000_000, 1_000_000, 1_000_000, 700)),
        # Beside the draws of the rest, so that those stay as they were.
        unique=random.Random(f"unique {seed}").random() < 0.5,
        **_draw_limits(seed),
    )
    return plan.without(tuple(_draw_faults(rng, plan, skew)))


def _draw_limits(seed: int) -> dict[str, tuple[int, ...]]:
    rng = random.Random(f"limits {seed}")
    if rng.random() < 0.65:
        return {}
    limits = tuple(rng.randint(1, 8) for _ in range(rng.choice((1, 2, 2))))
    return {"limits": limits, "rates": (rng.randint(1, 8),) if rng.random() < 0.5 else ()}


def _draw_faults(rng: random.Random, plan: Plan, skew: float) -> list[Fault]:
    faults = []
    # One node without the guard promises nothing about lost data, so nothing of it is lost.
    # Outside, histories whose counters survive show that tokens need no timing.
    keeps_data = (
        not plan.guard if plan.flavour == "inside" else rng.random() < 0.6
    ) and plan.flavour != "no guard"
    intensity = rng.choice((0.3, 1.0, 1.0, 2.0))
    for kinds, mean in ((_NODE_FAULTS, 6), (_LINK_FAULTS, 8), (_MACHINE_FAULTS, 7)):
        for _ in range(round(mean * intensity * rng.random() * 2)):
            fault = _draw(rng, plan, rng.choice(kinds), skew)
            if keeps_data and fault.kind in ("crash", "flush"):
                fault = replace(fault, kind="crash", detail="full")
            faults.append(fault)
            if fault.detail == "stale":
                before = max(0.0, fault.at - rng.expovariate(1 / plan.ttl))
                faults.append(Fault(at=before, kind="snapshot", node=fault.node))
    if plan.flavour == "no guard":
        faults += [
            Fault(at=at, kind="flush", node=node)
            for at in (rng.uniform(0, plan.duration) for _ in range(8))
            for node in rng.sample(range(len(plan.nodes)), len(plan.nodes) // 2 + 1)
        ]
    if plan.flavour == "node clocks stepped":
        faults += [
            Fault(at=at, kind="node step", node=node, seconds=plan.ttl * 2)
            for at in (rng.uniform(0, plan.duration) for _ in range(8))
            for node in range(len(plan.nodes))
        ]
    return sorted(faults, key=lambda fault: fault.at)


def _draw(rng: random.Random, plan: Plan, kind: str, skew: float) -> Fault:
    at = rng.uniform(0.1, plan.duration)
    node = rng.randrange(len(plan.nodes))
    machine = rng.randrange(len(plan.machines))
    about = rng.choice((plan.node_timeout, plan.ttl))
    some = about * rng.uniform(0.3, 2.5)
    on_node = partial(Fault, at=at, kind=kind, node=node)
    on_machine = partial(Fault, at=at, kind=kind, machine=machine)
    if kind == "crash":
        data = rng.choice(("none", "none", "stale", "full"))
        return on_node(seconds=rng.choice((0.0, some)), detail=data)
    if kind == "stop":
        return on_node(seconds=some)
    if kind == "flip":
        return on_node(seconds=some, detail=rng.choice(("", "read only")))
    if kind in ("flush", "script flush"):
        return on_node()
    if kind == "break":
        return on_node(machine=machine)
    if kind == "partition":
        everybody = rng.random() < 0.3
        return on_node(machine=-1 if everybody else machine, seconds=some)
    if kind == "slow":
        # `seconds` is the extra delay; it lasts for a TTL or so.
        return on_node(machine=machine, seconds=plan.node_timeout * rng.uniform(0.2, 2.0))
    if kind in ("pause", "suspend"):
        return on_machine(seconds=some, count=rng.choice((0, 0, 1, 3, 9)))
    if kind == "isolate":
        return on_machine(seconds=plan.ttl * rng.uniform(0.5, 2.0))
    if kind == "wall step":
        return on_machine(seconds=rng.uniform(-skew, skew))
    return on_machine(seconds=some)


#: Seconds after a promotion until which former masters' votes may count: 2 s in which Sentinels
#: name them, and 5 s more; and for slow clocks a little.
_TAKEOVERS = (7.5, 9.0)


def failing_over(plan: Plan) -> Plan:
    """Return a plan whose first nodes, or all of them, fail over, with what comes with that."""
    rng = random.Random(f"failover {plan.seed}")
    count = rng.choice((len(plan.nodes), rng.randint(1, len(plan.nodes))))
    # Also leases that outlast the word of a Sentinel.
    longer = rng.choice((1.0, 1.0, 1.0, 8.0))
    plan = replace(
        plan,
        ttl=plan.ttl * longer,
        max_ttl=plan.max_ttl * longer,
        guard=True,
        keys=rng.choice((1, 2, 3, 12)),
        takeover=rng.choice(_TAKEOVERS),
        duration=rng.uniform(20.0, 35.0),
        replicas=tuple(rng.choice(plan.servers) for _ in range(count)),
    )
    faults = list(plan.faults)
    together = rng.random() < 0.5
    at = rng.uniform(1.0, 8.0)
    while at < plan.duration - 2:
        for node in range(count) if together else (rng.randrange(count),):
            faults += _draw_failover(rng, plan, node, at + rng.uniform(0.0, 0.5))
        for machine in range(len(plan.machines)):
            faults += _draw_ignorance(rng, machine, at)
        at += rng.uniform(4.0, plan.takeover + plan.max_ttl + 6.0)
    return plan.without(tuple(sorted(faults, key=lambda fault: fault.at)))


def _draw_failover(rng: random.Random, plan: Plan, node: int, at: float) -> Iterator[Fault]:
    """Draw why a node fails over, how old the replica's data is, and what some still reach."""
    cause = rng.choice(("", "", "stop", "crash"))
    if cause:
        detail = rng.choice(("full", "none")) if cause == "crash" else ""
        ends = rng.choice((0.5, 3.0, 9.0)) * rng.random()
        yield Fault(at=at - rng.random(), kind=cause, node=node, seconds=ends, detail=detail)
    copied = at - rng.choice((0.0, 0.0, rng.expovariate(1 / plan.ttl)))
    yield Fault(at=max(0.0, copied), kind="replicate", node=node)
    unaware = rng.choice((5.0, 25.0)) * rng.random()
    yield Fault(at=at, kind="promote", node=node, seconds=unaware)
    for machine in range(len(plan.machines)):
        if rng.random() < 0.5:
            cut = Fault(at=at + rng.uniform(-2.0, 7.0), kind="partition", machine=machine)
            other = rng.randrange(len(plan.nodes))
            yield replace(cut, node=other, seconds=rng.uniform(0.5, 8.0))


def _draw_ignorance(rng: random.Random, machine: int, at: float) -> Iterator[Fault]:
    """Draw from which Sentinels a client hears nothing while nodes fail over."""
    begins, seconds = at + rng.uniform(-1.0, 2.0), rng.uniform(0.5, 12.0)
    for sentinel in rng.sample(range(SENTINELS), rng.choice((0, 0, 2, SENTINELS))):
        yield Fault(
            at=begins, kind="partition", machine=machine, sentinel=sentinel, seconds=seconds
        )
    if rng.random() < 0.2:
        at, readings = at + rng.uniform(0.0, 7.0), rng.randrange(20)
        yield Fault(
            at=at, kind="pause", machine=machine, seconds=rng.uniform(0.5, 8.0), count=readings
        )
    if rng.random() < 0.1:
        sentinel = rng.randrange(SENTINELS)
        yield Fault(at=begins, kind="stop", sentinel=sentinel, seconds=seconds)
