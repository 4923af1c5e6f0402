"""
Short histories: they keep every promise, and are the same again for the same seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evidence.simulation.contest import backlog, by_slots, contest, per_node
from evidence.simulation.plan import Plan, make_plan
from evidence.simulation.runner import PROFILES, plan_of, simulate
from evidence.simulation.world import carry_out
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[3]
SEEDS = sorted((ROOT / "evidence/simulation/seeds").glob("*.json"))

#: Of the histories in which slots and a counter on each node are compared.
SEEDS_COMPARED = range(1, 6)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 7])
def test_a_short_history_keeps_every_promise(size: int) -> None:
    outcome = carry_out(make_plan(size, flavour="inside", size=size))

    assert outcome.violations == []
    assert outcome.counters["acquisitions"] > 20


def test_no_more_bodies_than_a_limit_run_at_once_by_slots_and_all_slots_are_used() -> None:
    ours = contest(by_slots(2), SEEDS_COMPARED)

    assert (ours.most, ours.violations) == (2, 0)


def test_a_counter_on_each_node_lets_one_more_in() -> None:
    assert contest(per_node(2), SEEDS_COMPARED).most == 3


def test_waiters_for_a_rate_never_get_more_than_that_in_any_second() -> None:
    used, exceeded = backlog(2, SEEDS_COMPARED)

    assert used > 0
    assert exceeded == 0


def test_every_kind_of_limit_and_rate_is_met_in_histories() -> None:
    plan = replace(make_plan(2, flavour="inside", size=3), limits=(1, 3), rates=(4,))
    outcome = carry_out(plan)

    assert outcome.violations == []
    assert outcome.counters["limit reached"]
    assert outcome.counters["rated"]


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_a_history_full_of_one_class_of_faults_keeps_every_promise(profile: str) -> None:
    assert simulate([3], profile=profile).violations == []


def test_histories_of_failovers_meet_votes_of_former_masters_and_early_ones_of_new_masters() -> (
    None
):
    counters = simulate([3], profile="failover").counters

    assert counters["promotions"]
    assert counters["former counted"]
    assert counters["former unconfirmed"]
    assert counters["too early"]


@pytest.mark.parametrize("plan", [make_plan(11), plan_of(10, "failover")])
def test_the_same_plan_gives_the_same_trace_byte_for_byte(plan: Plan) -> None:
    first, second = carry_out(plan, traced=True), carry_out(plan, traced=True)

    assert len(first.trace) > 1000
    assert first.trace == second.trace


def test_another_process_with_another_hash_seed_gives_the_same_trace() -> None:
    plan = make_plan(12)
    code = (
        "from evidence.simulation.plan import make_plan\n"
        "from evidence.simulation.world import carry_out\n"
        "print(carry_out(make_plan(12), traced=True).digest)"
    )

    printed = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout.strip()

    assert printed == carry_out(plan, traced=True).digest


def test_tracing_changes_nothing() -> None:
    plan = make_plan(13)

    assert carry_out(plan, traced=True).counters == carry_out(plan).counters


@pytest.mark.parametrize("plan", [make_plan(14), plan_of(14, "failover")])
def test_a_plan_survives_being_written_down(plan: Plan) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_a_fault_that_was_found_once_stays_mended(path: Path) -> None:
    kept = json.loads(path.read_text())

    outcome = carry_out(Plan.from_json(kept["plan"]))

    assert outcome.violations == [], kept["found"]
