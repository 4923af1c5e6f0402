"""What a schedule promises: the same from the same seed, and never a majority of faulty nodes."""

from __future__ import annotations

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
    RELAY,
    TTL,
    WORKER_FAULTS,
    Fault,
    plan,
)

pytestmark = pytest.mark.full

SEEDS = range(20)


@pytest.mark.parametrize("outside", [False, True])
def test_the_same_seed_gives_the_same_faults(outside):
    assert plan(7, 60, outside=outside, clocks=True) == plan(7, 60, outside=outside, clocks=True)


def test_another_seed_gives_other_faults():
    assert plan(7, 60, outside=False, clocks=True) != plan(8, 60, outside=False, clocks=True)


def test_a_minute_has_every_kind_of_fault():
    kinds = {fault.kind for fault in plan(1, 60, outside=False, clocks=True)}
    assert kinds == {*NODE_FAULTS, CLOCK_NODE_FAULT, *CLOCK_FAULTS, *WORKER_FAULTS}


def test_four_minutes_have_every_kind_of_fault_of_groups():
    kinds = {fault.kind for fault in plan_groups(1, 240)}
    assert kinds == {*MASTER_FAULTS, *SENTINEL_FAULTS, *WORKER_FAULTS}


@pytest.mark.parametrize("seed", SEEDS)
def test_never_more_than_a_minority_is_faulty_counting_those_that_sit_out(seed):
    faults = [
        fault
        for fault in plan(seed, 120, outside=False, clocks=True)
        if not fault.on_worker and fault.kind not in CLOCK_FAULTS
    ]
    times = [time for fault in faults for time in _faulty_times(fault)]
    for _, start, _ in times:
        assert len({node for node, begun, end in times if begun <= start < end}) <= MINORITY


@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_use_less_than_the_drift_allowance_of_a_lease(seed):
    nudged: dict[int, float] = {}
    for fault in plan(seed, 120, outside=False, clocks=True):
        if fault.kind == "clock rate":
            assert abs(fault.amount) <= MOST_DRIFT_PPM
        if fault.kind == "clock nudge":
            assert abs(fault.amount) <= MOST_NUDGE
            assert fault.at - nudged.get(fault.targets[0], -10.0) >= NUDGE_PAUSE
            nudged[fault.targets[0]] = fault.at
    assert TTL * MOST_DRIFT_PPM / 1e6 + MOST_NUDGE < TTL * DRIFT_FACTOR
    assert NUDGE_PAUSE > TTL


def test_without_a_compiler_no_clock_is_touched():
    kinds = {fault.kind for fault in plan(1, 60, outside=False, clocks=False)}
    kinds |= {fault.kind for fault in plan(1, 60, outside=True, clocks=False)}
    assert not kinds & {CLOCK_NODE_FAULT, *CLOCK_FAULTS, *OUTSIDE_CLOCK_FAULTS}


def _faulty_times(fault: Fault) -> list[tuple[int, float, float]]:
    """Return which node is faulty from when until when."""
    first, *others = fault.targets
    mended = fault.at + fault.seconds
    begun = mended if fault.kind == RELAY else fault.at
    serves = mended + (MAX_TTL if fault.kind in FORGETTING else 0.0)
    return [(first, begun, serves), *((node, fault.at, mended) for node in others)]
