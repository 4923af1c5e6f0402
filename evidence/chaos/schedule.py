"""
Which faults come when: made from a seed alone, so that a run can be planned again.

Within the assumptions at most a minority of the nodes is faulty at any time, and a node counts as
faulty until it votes again: one that lost its memory sits out. Clocks of all nodes may drift, by
less than the drift allowance of a lease. What happens to workers is not limited.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

NODES = 5
WORKERS = 8
MINORITY = (NODES - 1) // 2

TTL = 1.0
MAX_TTL = 1.5
#: 52 ms of each lease are not trusted; clocks below use at most 10 + 20 ms of them.
DRIFT_FACTOR = 0.05
MOST_DRIFT_PPM = 10_000
MOST_NUDGE = 0.02
#: Between two nudges of one clock, so that no lease sees two.
NUDGE_PAUSE = 2.5
#: By how much workers' wall clocks are off; tokens stay in order while it is far below MAX_TTL.
MOST_SKEW = 0.25

#: What is locked: keys of resources without a fencing guard, and with one.
PLAIN = ("plain-a", "plain-b")
FENCED = ("fenced-a", "fenced-b")
#: A key that so many may hold. Each slot has a guarded resource of its own.
LIMITED, LIMIT = "limited", 2
SLOTS = tuple(f"{LIMITED}#{slot}" for slot in range(LIMIT))

#: Two nodes refuse, and miss what the other three grant. They come back, and at once one of the
#: three forgets: together they would be a quorum that knows nothing, but for the restart guard.
RELAY = "relay"

#: Faults that make a node forget, so that it sits out MAX_TTL afterwards.
FORGETTING = ("restart empty", "restart stale", "flush", RELAY)
NODE_FAULTS = (
    *FORGETTING,
    "stop",
    "cut off",
    "cut off from half",
    "slow",
    "late replies",
    "refuse",
    "garbage",
    "cut wake-ups",
)
CLOCK_NODE_FAULT = "clock back"
CLOCK_FAULTS = ("clock rate", "clock nudge")
WORKER_FAULTS = ("freeze", "short freeze", "freeze before write", "kill")
#: Faults of the processes in the task layer, beside those.
TASK_WORKER_FAULTS = ("freeze", "short freeze", "kill", "kill child", "terminate")
PUBLISHER_FAULTS = ("freeze publisher", "kill publisher", "terminate publisher")
OUTSIDE_FAULTS = ("wipe majority", "stop")
OUTSIDE_CLOCK_FAULTS = ("majority leaps", "majority races")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """
    One fault.

    Attributes:
        at: seconds since the start of the run.
        kind: what happens.
        targets: positions of nodes, or of one worker.
        seconds: how long it lasts.
        amount: how much: seconds of a delay or step, millionths of a rate.
    """

    at: float
    kind: str
    targets: tuple[int, ...]
    seconds: float = 0.0
    amount: float = 0.0

    @property
    def on_worker(self) -> bool:
        """Whether the target is a worker or a publisher."""
        return self.kind in (*WORKER_FAULTS, *TASK_WORKER_FAULTS, *PUBLISHER_FAULTS)


def plan(seed: int, duration: float, *, outside: bool, clocks: bool) -> list[Fault]:
    """
    Return the faults of a run in order.

    Args:
        seed: the same one gives the same faults.
        duration: seconds.
        outside: go beyond the assumptions.
        clocks: whether clocks of nodes can be set.
    """
    parts = [worker_faults(random.Random(f"{seed} workers"), duration)]
    if outside:
        parts.append(_outside(random.Random(f"{seed} outside"), duration, clocks))
    else:
        parts.append(node_faults(random.Random(f"{seed} nodes"), duration, clocks))
        if clocks:
            parts.append(_drift(random.Random(f"{seed} drift"), duration))
    return sorted(chain(*parts), key=lambda fault: fault.at)


def deck(rng: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    """Yield kinds in random order, each as often as the others."""
    while True:
        yield from rng.sample(kinds, len(kinds))


def node_faults(rng: random.Random, duration: float, clocks: bool) -> Iterator[Fault]:
    """Yield faults of nodes and networks, at most of a minority at any time."""
    free_at = [0.0] * NODES
    # The relay is what tells best whether the guard works.
    kinds = deck(rng, (*NODE_FAULTS, RELAY, *((CLOCK_NODE_FAULT,) if clocks else ())))
    at = 0.5
    while True:
        at += rng.expovariate(1 / 0.3)
        # The moment at which fewer than a minority are faulty.
        at = max(at, sorted(free_at)[-MINORITY])
        kind = next(kinds)
        if kind == RELAY:
            at = max(at, *free_at)
        if at >= duration:
            return
        node = rng.choice([index for index in range(NODES) if free_at[index] <= at])
        seconds = rng.uniform(0.3, 2.0)
        amount = 0.0
        if kind == "slow":
            amount = rng.uniform(0.02, 0.15)
        elif kind == "late replies":
            amount = rng.uniform(0.25, 1.2)
        elif kind == "restart stale":
            amount = rng.uniform(0.1, 0.8)
        elif kind == CLOCK_NODE_FAULT:
            # Its keys live that much longer, so it may vote against everybody for so long.
            amount = rng.uniform(0.1, 0.8)
            seconds = amount + TTL
        targets: tuple[int, ...] = (node,)
        if kind == RELAY:
            others = [index for index in range(NODES) if index != node]
            targets += tuple(rng.sample(others, MINORITY))
        sits_out = MAX_TTL + 0.5 if kind in FORGETTING else 0.2
        lead = amount if kind == "restart stale" else 0.0
        for target in targets:
            free_at[target] = at + lead + seconds + sits_out
        yield Fault(at=at, kind=kind, targets=targets, seconds=seconds, amount=amount)


def _drift(rng: random.Random, duration: float) -> Iterator[Fault]:
    nudge_at = [0.0] * NODES
    at = 0.0
    while (at := at + rng.uniform(0.3, 1.0)) < duration:
        node = rng.randrange(NODES)
        if rng.random() < 0.5:
            ppm = rng.uniform(-MOST_DRIFT_PPM, MOST_DRIFT_PPM)
            yield Fault(at=at, kind="clock rate", targets=(node,), amount=round(ppm))
        elif at >= nudge_at[node]:
            nudge_at[node] = at + NUDGE_PAUSE
            step = rng.uniform(-MOST_NUDGE, MOST_NUDGE)
            yield Fault(at=at, kind="clock nudge", targets=(node,), amount=step)


def worker_faults(rng: random.Random, duration: float) -> Iterator[Fault]:
    """Yield faults of workers."""
    free_at = [0.0] * WORKERS
    kinds = deck(rng, WORKER_FAULTS)
    at = 0.5
    while (at := at + rng.expovariate(1 / 0.8)) < duration:
        free = [slot for slot in range(WORKERS) if free_at[slot] <= at]
        if len(free) <= WORKERS // 2:
            continue
        slot = rng.choice(free)
        kind = next(kinds)
        seconds = rng.uniform(0.2, 0.7) if kind == "short freeze" else rng.uniform(1.1, 2.5) * TTL
        free_at[slot] = at + seconds + 1.5
        yield Fault(at=at, kind=kind, targets=(slot,), seconds=seconds)


def _outside(rng: random.Random, duration: float, clocks: bool) -> Iterator[Fault]:
    kinds = deck(rng, OUTSIDE_FAULTS + (OUTSIDE_CLOCK_FAULTS if clocks else ()))
    at = 0.3
    while (at := at + rng.uniform(0.5, 1.0)) < duration:
        kind = next(kinds)
        if kind == "stop":
            seconds = rng.uniform(0.3, 1.0)
            yield Fault(at=at, kind=kind, targets=(rng.randrange(NODES),), seconds=seconds)
            continue
        seconds, amount = 0.0, 0.0
        if kind == "majority leaps":
            amount = rng.uniform(1.0, 3.0) * TTL
        elif kind == "majority races":
            # Ten times as fast: a lease of a second ends after a tenth.
            seconds, amount = rng.uniform(0.5, 1.5), 9_000_000
        majority = rng.sample(range(NODES), NODES - MINORITY)
        yield Fault(at=at, kind=kind, targets=tuple(majority), seconds=seconds, amount=amount)
