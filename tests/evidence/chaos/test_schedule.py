"""What a schedule promises: the same from the same seed, and never a majority of faulty nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from evidence.chaos.groups import MASTER_FAULTS, SENTINEL_FAULTS, plan_groups
from evidence.chaos.schedule import (
    CLOCK_FAULTS,
    CLOCK_NODE_FAULT,
    DRIFT_FACTOR,
    FORGETTING,
    MAX_TTL,
    MINORITY,
    MOST_DRIFT_PPM,
    MOST_NUDGE,
    NODE_FAULTS,
    NUDGE_PAUSE,
    OUTSIDE_CLOCK_FAULTS,
    PUBLISHER_FAULTS,
    RELAY,
    TASK_WORKER_FAULTS,
    TTL,
    WORKER_FAULTS,
    Fault,
    plan,
)
from evidence.chaos.tasks.schedule import CYCLE, POOLS, PUBLISHERS, STORM, in_storm, plan_tasks

pytestmark = pytest.mark.full

Planned = Callable[[int, float], list[Fault]]

plan_locks = partial(plan, outside=False, clocks=True)
plan_outside = partial(plan, outside=True, clocks=True)

ON_LOCKS = {*NODE_FAULTS, CLOCK_NODE_FAULT, *CLOCK_FAULTS, *WORKER_FAULTS}
ON_GROUPS = {*MASTER_FAULTS, *SENTINEL_FAULTS, *WORKER_FAULTS}
ON_TASKS = {*NODE_FAULTS, *TASK_WORKER_FAULTS, *PUBLISHER_FAULTS}
KINDS = {
    "a minute of locks": (plan_locks, 60, ON_LOCKS),
    "four minutes of groups": (plan_groups, 240, ON_GROUPS),
    "four minutes of tasks": (plan_tasks, 240, ON_TASKS),
}
PLANS = {"locks": plan_locks, "outside": plan_outside, "tasks": plan_tasks}

each_seed = pytest.mark.parametrize("seed", range(20))


@pytest.mark.parametrize("planned", PLANS.values(), ids=PLANS)
def test_the_same_seed_gives_the_same_faults_and_another_one_others(planned: Planned):
    assert planned(7, 60) == planned(7, 60)
    assert planned(7, 60) != planned(8, 60)


@pytest.mark.parametrize(("planned", "seconds", "kinds"), KINDS.values(), ids=KINDS)
def test_a_run_has_every_kind_of_fault(planned: Planned, seconds: float, kinds: set[str]):
    assert {fault.kind for fault in planned(1, seconds)} == kinds


def test_half_a_minute_of_tasks_has_faults_of_nodes_workers_and_publishers():
    kinds = {fault.kind for fault in plan_tasks(1, 30)}
    for some in (NODE_FAULTS, TASK_WORKER_FAULTS, PUBLISHER_FAULTS):
        assert kinds.intersection(some)


@each_seed
@pytest.mark.parametrize("planned", [plan_locks, plan_tasks], ids=["locks", "tasks"])
def test_never_more_than_a_minority_is_faulty_counting_those_that_sit_out(
    planned: Planned, seed: int
):
    faults = [
        fault
        for fault in planned(seed, 120)
        if not fault.on_worker and fault.kind not in CLOCK_FAULTS
    ]
    times = [time for fault in faults for time in _faulty_times(fault)]
    for _, start, _ in times:
        assert len({node for node, begun, end in times if begun <= start < end}) <= MINORITY


@each_seed
def test_clocks_use_less_than_the_drift_allowance_of_a_lease(seed: int):
    nudged: dict[int, float] = {}
    for fault in plan_locks(seed, 120):
        if fault.kind == "clock rate":
            assert abs(fault.amount) <= MOST_DRIFT_PPM
        if fault.kind == "clock nudge":
            assert abs(fault.amount) <= MOST_NUDGE
            assert fault.at - nudged.get(fault.targets[0], -10.0) >= NUDGE_PAUSE
            nudged[fault.targets[0]] = fault.at
    assert TTL * MOST_DRIFT_PPM / 1e6 + MOST_NUDGE < TTL * DRIFT_FACTOR
    assert NUDGE_PAUSE > TTL


@pytest.mark.parametrize("outside", [False, True])
def test_without_a_compiler_no_clock_is_touched(outside: bool):
    kinds = {fault.kind for fault in plan(1, 60, outside=outside, clocks=False)}
    assert not kinds & {CLOCK_NODE_FAULT, *CLOCK_FAULTS, *OUTSIDE_CLOCK_FAULTS}


@each_seed
def test_faults_of_tasks_begin_in_storms_only_and_each_cycle_has_calm(seed: int):
    assert all(in_storm(fault.at) for fault in plan_tasks(seed, 120))
    assert STORM[1] < CYCLE - 4.0


@each_seed
def test_faults_of_processes_fit_the_process(seed: int):
    for fault in plan_tasks(seed, 120):
        if fault.kind in PUBLISHER_FAULTS:
            assert len(POOLS) <= fault.targets[0] < len(POOLS) + PUBLISHERS
        elif fault.kind == "kill child":
            assert POOLS[fault.targets[0]] == "prefork"
        elif fault.kind in TASK_WORKER_FAULTS:
            assert fault.targets[0] < len(POOLS)


def _faulty_times(fault: Fault) -> list[tuple[int, float, float]]:
    """Return which node is faulty from when until when."""
    first, *others = fault.targets
    mended = fault.at + fault.seconds
    begun = mended if fault.kind == RELAY else fault.at
    serves = mended + (MAX_TTL if fault.kind in FORGETTING else 0.0)
    return [(first, begun, serves), *((node, fault.at, mended) for node in others)]
