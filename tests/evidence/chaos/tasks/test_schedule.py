"""What the schedule of the task layer promises beside that of the lock layer."""

from __future__ import annotations

import pytest

from evidence.chaos.schedule import (
    FORGETTING,
    MAX_TTL,
    MINORITY,
    NODE_FAULTS,
    PUBLISHER_FAULTS,
    RELAY,
    TASK_WORKER_FAULTS,
    Fault,
)
from evidence.chaos.tasks.schedule import CYCLE, POOLS, PUBLISHERS, STORM, in_storm, plan_tasks

pytestmark = pytest.mark.full

SEEDS = range(20)


def test_the_same_seed_gives_the_same_faults_and_another_one_others():
    assert plan_tasks(7, 60) == plan_tasks(7, 60)
    assert plan_tasks(7, 60) != plan_tasks(8, 60)


def test_some_minutes_have_every_kind_of_fault():
    kinds = {fault.kind for fault in plan_tasks(1, 240)}
    assert kinds == {*NODE_FAULTS, *TASK_WORKER_FAULTS, *PUBLISHER_FAULTS}


def test_half_a_minute_has_faults_of_nodes_workers_and_publishers():
    kinds = {fault.kind for fault in plan_tasks(1, 30)}
    for some in (NODE_FAULTS, TASK_WORKER_FAULTS, PUBLISHER_FAULTS):
        assert kinds.intersection(some)


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_begin_in_storms_only_and_each_cycle_has_calm(seed):
    assert all(in_storm(fault.at) for fault in plan_tasks(seed, 120))
    assert STORM[1] < CYCLE - 4.0


@pytest.mark.parametrize("seed", SEEDS)
def test_never_more_than_a_minority_of_nodes_is_faulty(seed):
    faults = [fault for fault in plan_tasks(seed, 120) if not fault.on_worker]
    times = [time for fault in faults for time in _faulty_times(fault)]
    for _, start, _ in times:
        assert len({node for node, begun, end in times if begun <= start < end}) <= MINORITY


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_of_processes_fit_the_process(seed):
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
