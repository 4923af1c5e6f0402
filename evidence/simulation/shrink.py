"""
Making a failing plan smaller: fewer faults, fewer clients, less time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from evidence.simulation.plan import Fault, Plan
from evidence.simulation.world import carry_out

#: Seconds of real time that shrinking may take.
_BUDGET = 40.0


def shrink(plan: Plan, kind: str, budget: float = _BUDGET) -> Plan:
    """Return a smaller plan that still breaks the same promise."""
    deadline = time.monotonic() + budget

    def fails(candidate: Plan) -> bool:
        return any(broken.kind == kind for broken in carry_out(candidate).violations)

    def smaller(candidate: Plan) -> bool:
        return time.monotonic() < deadline and fails(candidate)

    violations = carry_out(plan).violations
    end = min(violations[0].at, plan.duration) if violations else plan.duration
    faults = tuple(fault for fault in plan.faults if fault.at <= end)
    if smaller(replace(plan, faults=faults)):
        plan = replace(plan, faults=faults)
    plan = plan.without(minimal(plan.faults, lambda rest: smaller(plan.without(rest))))
    changes: tuple[dict[str, Any], ...] = (
        {"threads": 1},
        {"keys": 1},
        {"keys": 2},
        {"limits": (), "rates": ()},
        {"limits": plan.limits[:1], "rates": ()},
        {"machines": plan.machines[:2]},
    )
    for change in changes:
        candidate = replace(plan, **change)
        slots = len(candidate.machines)
        if all(fault.machine < slots for fault in plan.faults) and smaller(candidate):
            plan = candidate
    return plan.without(minimal(plan.faults, lambda rest: smaller(plan.without(rest))))


def minimal(
    faults: tuple[Fault, ...], fails: Callable[[tuple[Fault, ...]], bool]
) -> tuple[Fault, ...]:
    """Delta debugging: leave out ever smaller parts while what is left still fails."""
    size = max(1, len(faults) // 2)
    while faults:
        for start in range(0, len(faults), size):
            rest = faults[:start] + faults[start + size :]
            if fails(rest):
                faults = rest
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return faults
