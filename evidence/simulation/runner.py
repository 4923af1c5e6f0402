"""
Many histories, one after the other, and their sum.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Any

from evidence.simulation.plan import Plan, failing_over, make_plan
from evidence.simulation.world import carry_out

#: What a full run must have met, each so often, to say anything.
COVERAGE = (
    "second round",
    "second round of slots",
    "limited",
    "limit reached",
    "rated",
    "heal",
    "quarantine",
    "late reply",
    "lost lease",
    "split retry",
    "takeover",
    "hand back",
    "finished",
    "twin ignored",
)
LEAST = 1000

#: What a full run must have seen: of failovers, and where assumptions were broken on purpose.
SEEN = (
    "promotions",
    "former counted",
    "former unconfirmed",
    "too early",
    "overlaps outside",
    "limit exceeded outside",
    "rate exceeded outside",
    "refused by guard",
    "bare lost updates",
)

#: Faults that a profile makes the more frequent ones, by the name of what they bring about.
PROFILES: dict[str, frozenset[str]] = {
    "crash": frozenset({"crash", "snapshot", "flush", "flip"}),
    "heal": frozenset({"crash", "flush", "break"}),
    "late": frozenset({"slow", "partition", "stop", "break"}),
    "pause": frozenset({"pause", "kill", "isolate"}),
    "suspend": frozenset({"suspend"}),
    "skew": frozenset({"wall step", "slow"}),
    "failover": frozenset({"stop", "partition", "break", "pause", "isolate", "kill"}),
}

#: Of the histories without a profile, every so many-th is one of failovers. It is odd, so that two
#: processes that share them by turns have as many.
_FAILOVER_EVERY = 15


@dataclass(slots=True)
class Report:
    """
    What a run of histories came to.

    Attributes:
        histories: how many ran.
        counters: everything that was counted.
        violations: (plan, kind, text) of each broken promise.
        seconds: of real time.
    """

    histories: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[Plan, str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Report) -> None:
        self.histories += other.histories
        self.counters += other.counters
        self.violations += other.violations

    def shortfalls(self, acquisitions: int) -> list[str]:
        """Return what a full run should have met and has not."""
        short = []
        if self.counters["acquisitions"] < acquisitions:
            short.append(f"acquisitions {self.counters['acquisitions']} of {acquisitions}")
        short += [
            f"{name} {self.counters[name]} of {LEAST}"
            for name in COVERAGE
            if self.counters[name] < LEAST
        ]
        return short + [f"{name} never seen" for name in SEEN if not self.counters[name]]

    def to_json(self, acquisitions: int = 0) -> dict[str, Any]:
        return {
            "schedules": self.histories,
            "acquisitions": self.counters["acquisitions"],
            "coverage": dict(sorted(self.counters.items())),
            "violations": len(self.violations),
            "shortfalls": self.shortfalls(acquisitions) if acquisitions else [],
            "seconds": round(self.seconds, 1),
        }


def plan_of(seed: int, profile: str | None) -> Plan:
    """Return the seed's plan; a profile repeats its own faults and leaves the others out."""
    if profile is None and seed % _FAILOVER_EVERY == 0:
        profile = "failover"
    plan = make_plan(seed, flavour="inside" if profile else None)
    if profile is None:
        return plan
    wanted = PROFILES[profile]
    drawn = itertools.chain(
        plan.faults, *(make_plan(seed * 1000 + n, flavour="inside").faults for n in range(1, 5))
    )
    nodes, machines = len(plan.nodes), len(plan.machines)
    faults = [
        replace(
            fault,
            at=fault.at % plan.duration,
            node=fault.node % nodes if fault.node >= 0 else -1,
            machine=fault.machine % machines if fault.machine >= 0 else -1,
            detail=fault.detail if plan.guard or fault.kind != "crash" else "full",
        )
        for fault in drawn
        if fault.kind in wanted and (plan.guard or fault.kind != "flush")
    ]
    plan = plan.without(tuple(sorted(faults, key=lambda fault: fault.at)))
    return failing_over(plan) if profile == "failover" else plan


def simulate(
    seeds: Iterable[int],
    *,
    acquisitions: int | None = None,
    profile: str | None = None,
    stop_at_first: bool = False,
) -> Report:
    """
    Carry out the histories of `seeds`.

    Args:
        seeds: one for each history.
        acquisitions: stop when there have been so many.
        profile: a name in `PROFILES`.
        stop_at_first: stop at the first broken promise.
    """
    report = Report()
    begun = time.monotonic()
    for seed in seeds:
        # What a history leaves behind is one heap of cycles; to look for it meanwhile is waste.
        gc.collect()
        gc.disable()
        plan = plan_of(seed, profile)
        try:
            outcome = carry_out(plan)
        except Exception as exc:
            raise RuntimeError(f"the simulation itself failed at seed {seed}") from exc
        report.histories += 1
        report.counters += outcome.counters
        report.violations += [(plan, broken.kind, broken.text) for broken in outcome.violations]
        enough = acquisitions is not None and report.counters["acquisitions"] >= acquisitions
        if enough or (stop_at_first and report.violations):
            break
    gc.enable()
    report.seconds = time.monotonic() - begun
    return report


def simulate_in_processes(
    seed: int, *, acquisitions: int, processes: int, profile: str | None
) -> Report:
    """
    Spread histories over processes, each of which stops at the first broken promise.

    Which seeds run depends on the numbers alone.
    """
    begun = time.monotonic()
    share = -(-acquisitions // processes)
    total = Report()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        parts = [
            pool.submit(
                simulate,
                range(seed + n, sys.maxsize, processes),
                acquisitions=share,
                profile=profile,
                stop_at_first=True,
            )
            for n in range(processes)
        ]
        for part in parts:
            total.add(part.result())
    total.seconds = time.monotonic() - begun
    return total
