"""
Which faults come when in the task layer: in storms, with calm between them.

"Sent twice, run once" is a promise for the time in which a task waits. Nobody renews its
reservation, so a fault at one node after the other may take it from its quorum. What is judged
strictly needs times at which nothing is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from evidence.chaos.schedule import (
    PUBLISHER_FAULTS,
    TASK_WORKER_FAULTS,
    TTL,
    Fault,
    deck,
    node_faults,
)

#: The pool of each worker.
POOLS = ("prefork", "threads", "prefork", "threads")
PUBLISHERS = 2

#: Seconds: each cycle begins calm, and what begins in its storm may last some seconds longer.
CYCLE = 12.0
STORM = (2.0, 7.0)


def plan_tasks(seed: int, duration: float) -> list[Fault]:
    """
    Return the faults of a run of the task layer in order.

    Args:
        seed: the same one gives the same faults.
        duration: seconds.
    """
    nodes = node_faults(random.Random(f"{seed} task nodes"), duration, clocks=False)
    faults = [fault for fault in nodes if in_storm(fault.at)]
    faults += _processes(random.Random(f"{seed} task processes"), duration)
    return sorted(faults, key=lambda fault: fault.at)


def in_storm(at: float) -> bool:
    """Return whether faults may begin so many seconds after the start."""
    return STORM[0] <= at % CYCLE < STORM[1]


def _processes(rng: random.Random, duration: float) -> Iterator[Fault]:
    slots = len(POOLS) + PUBLISHERS
    free_at = [0.0] * slots
    kinds = deck(rng, (*TASK_WORKER_FAULTS, *PUBLISHER_FAULTS))
    at = 0.0
    while (at := at + rng.expovariate(1 / 0.8)) < duration:
        if not in_storm(at):
            continue
        kind = next(kinds)
        candidates = range(len(POOLS))
        if kind in PUBLISHER_FAULTS:
            candidates = range(len(POOLS), slots)
        elif kind == "kill child":
            candidates = [slot for slot in candidates if POOLS[slot] == "prefork"]
        free = [slot for slot in candidates if free_at[slot] <= at]
        if not free:
            continue
        slot = rng.choice(free)
        seconds = rng.uniform(0.2, 0.7) if kind == "short freeze" else rng.uniform(1.1, 2.5) * TTL
        free_at[slot] = at + seconds + 3.0
        yield Fault(at=at, kind=kind, targets=(slot,), seconds=seconds)
