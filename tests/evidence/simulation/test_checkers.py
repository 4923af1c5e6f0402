"""
Every checker fires on a history that breaks its promise, planted by hand or by broken assumptions.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.errors import LockContended
from celery_redlock.protocol.keys import Key
from evidence.simulation.history import History, Hold, Resource
from evidence.simulation.plan import OUTSIDE, Fault, Plan, make_plan
from evidence.simulation.runner import plan_of, simulate
from evidence.simulation.shrink import minimal
from evidence.simulation.world import carry_out

pytestmark = pytest.mark.full

PLAN = Plan(
    seed=0,
    flavour="inside",
    nodes=((1.0, 0.0),) * 3,
    machines=((1.0, 0.0),) * 2,
    threads=1,
    keys=1,
    duration=1.0,
    ttl=1.0,
    max_ttl=1.0,
)

MACHINE = SimpleNamespace(name="client", freezes=0)

KEY = Key.of("", "key")


class Planted:
    """A history that is told what happens; leases are valid as long as it says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.valid: set[str] = set()
        self.history = History(PLAN, lambda: self.now, self._is_valid)
        self._owners = 0

    def _is_valid(self, hold: Hold) -> bool:
        return hold.lease.owner in self.valid

    def grant(
        self,
        token: int,
        floors: dict[str, int] | None = None,
        *,
        key: Key = KEY,
        slot: int = 0,
        took: float = 0.0,
    ) -> Hold:
        self._owners += 1
        owner = f"owner {self._owners}"
        self.valid.add(owner)
        places = key.places
        self.history.won(owner, floors or self.history.floors(places), self.now - took)
        lease: Any = SimpleNamespace(
            owner=owner,
            keys=(key.text,),
            fencing_token=token,
            _holding=SimpleNamespace(asked_for=(key,), names_of=lambda _: (places[slot],)),
        )
        return self.history.granted(lease, MACHINE)

    def expire(self, hold: Hold) -> None:
        self.valid.discard(hold.lease.owner)

    def release(self, hold: Hold) -> None:
        self.history.ended(hold)
        self.expire(hold)

    @property
    def kinds(self) -> list[str]:
        return [broken.kind for broken in self.history.violations]


@pytest.fixture
def planted() -> Planted:
    return Planted()


def test_a_proper_succession_of_holders_is_fine(planted: Planted) -> None:
    planted.release(planted.grant(5))
    planted.expire(planted.grant(6))
    planted.grant(9)

    assert planted.kinds == []


def test_two_trusted_holders_at_once_are_seen(planted: Planted) -> None:
    planted.grant(5)
    planted.grant(6)

    assert planted.kinds == ["exclusion"]


def test_as_many_holders_as_the_limit_are_fine(planted: Planted) -> None:
    for slot in range(3):
        planted.grant(5, key=Key.of("", "key", 3), slot=slot)

    assert planted.kinds == []


def test_two_holders_of_one_slot_are_seen(planted: Planted) -> None:
    planted.grant(5, key=Key.of("", "key", 3), slot=1)
    planted.grant(6, key=Key.of("", "key", 3), slot=1)

    assert planted.kinds == ["exclusion"]


def test_more_holders_than_the_limit_are_seen(planted: Planted) -> None:
    for slot, token in ((0, 5), (1, 5), (1, 6)):
        planted.grant(token, key=Key.of("", "key", 2), slot=slot)

    assert "limit" in planted.kinds


def test_a_token_that_falls_back_on_one_slot_is_seen(planted: Planted) -> None:
    planted.release(planted.grant(5, key=Key.of("", "key", 3), slot=1))
    planted.release(planted.grant(4, key=Key.of("", "key", 3), slot=2))
    planted.grant(4, key=Key.of("", "key", 3), slot=1)

    assert planted.kinds == ["token order"]


RATE = Key.of("", "key", 2, 1020)


def test_as_many_starts_in_any_period_as_the_rate_are_fine(planted: Planted) -> None:
    for token, planted.now in enumerate((0.0, 0.9, 1.02, 1.92), start=5):
        planted.release(planted.grant(token, key=RATE, slot=token % 2))

    assert planted.kinds == []


def test_more_starts_in_a_period_than_the_rate_are_seen(planted: Planted) -> None:
    for token, planted.now in enumerate((0.0, 0.9, 1.02, 1.89), start=5):
        planted.release(planted.grant(token, key=RATE, slot=token % 2))

    assert planted.kinds == ["rate"]


def test_a_start_that_took_long_counts_from_when_it_was_asked_for(planted: Planted) -> None:
    planted.grant(5, key=Key.of("", "key", 1, 1020), took=0.3)
    planted.now = 0.75
    planted.grant(6, key=Key.of("", "key", 1, 1020))

    assert planted.kinds == []


def test_a_rate_is_not_judged_when_nodes_lost_slots_that_outlast_their_quarantine(
    planted: Planted,
) -> None:
    planted.history.data_lost()
    for token in (5, 6, 7):
        planted.grant(token, key=RATE, slot=token % 2)

    assert planted.kinds == []


def test_a_body_of_a_message_that_was_finished_is_seen(planted: Planted) -> None:
    first = planted.grant(5)
    planted.history.begins(first, "mark")
    planted.release(first)
    planted.history.finished("mark")
    planted.history.begins(planted.grant(6), "mark")

    assert planted.kinds == ["ran twice"]


def test_a_body_of_a_message_whose_first_body_lost_its_lease_is_fine(planted: Planted) -> None:
    first = planted.grant(5)
    planted.history.begins(first, "mark")
    planted.expire(first)
    planted.history.begins(planted.grant(6), "mark")

    assert planted.kinds == []


def test_a_token_that_is_given_out_twice_is_seen(planted: Planted) -> None:
    planted.release(planted.grant(5))
    planted.grant(5)

    assert planted.kinds == ["token reuse"]


def test_a_token_that_falls_back_is_seen(planted: Planted) -> None:
    planted.release(planted.grant(5))
    planted.grant(4)

    assert planted.kinds == ["token order"]


def test_tokens_of_attempts_that_overlap_are_ordered_by_their_trust(planted: Planted) -> None:
    before = planted.history.floors(("key",))
    planted.release(planted.grant(5))
    planted.grant(4, before)

    assert planted.kinds == ["token order"]


def test_a_holder_that_is_valid_again_after_it_was_superseded_is_seen(planted: Planted) -> None:
    old = planted.grant(5)
    planted.expire(old)
    planted.release(planted.grant(6))
    planted.valid.add(old.lease.owner)
    planted.history.look(old)

    assert planted.kinds == ["resumed"]


def test_a_loss_that_is_reported_twice_is_seen(planted: Planted) -> None:
    hold = planted.grant(5)
    planted.history.lost(hold, "why", late_by=-0.1)
    planted.history.lost(hold, "why", late_by=-0.1)

    assert planted.kinds == ["reported twice"]


def test_a_loss_that_is_reported_too_late_is_seen(planted: Planted) -> None:
    planted.history.lost(planted.grant(5), "why", late_by=0.1)

    assert planted.kinds == ["late report"]


def test_a_lost_update_is_seen(planted: Planted) -> None:
    resource = Resource("key", planted.history, guarded=True)
    first, second = resource.read(5), resource.read(5)
    assert first == second == 0
    resource.write(5, 1)
    resource.write(5, 1)

    assert planted.kinds == ["lost update"]


def test_a_conflict_with_somebody_who_never_had_a_quorum_is_seen(planted: Planted) -> None:
    planted.history.set_on["owner"] = 1
    planted.history.contended(LockContended("held", "key", "owner", 1.0))

    assert planted.kinds == ["false conflict"]


def test_a_key_that_nobody_releases_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_redlock.core.lease.Lease.release", lambda self, *, wait=True: True)
    monkeypatch.setattr(History, "contended", lambda self, error: None)
    kinds = {
        broken.kind
        for seed in (3, 6, 9)
        for broken in carry_out(make_plan(seed, flavour="inside")).violations
    }

    assert "left behind" in kinds


def test_a_guarded_resource_refuses_a_holder_whose_successor_has_read(planted: Planted) -> None:
    resource = Resource("key", planted.history, guarded=True)
    resource.read(5)
    resource.read(6)

    assert resource.write(5, 1) is False


def test_lost_data_without_the_guard_suspends_exclusion_and_nothing_else_does(
    planted: Planted,
) -> None:
    planted.history.data_lost()
    assert planted.history.exclusion_holds
    planted.history.node_clock_stepped(1.0)
    assert not planted.history.exclusion_holds


@pytest.mark.parametrize("flavour", OUTSIDE)
def test_broken_assumptions_let_two_holders_in_and_the_checker_sees_them(flavour: str) -> None:
    overlaps = 0
    for seed in range(1, 20):
        outcome = carry_out(make_plan(seed, flavour=flavour))
        assert outcome.violations == []
        overlaps += outcome.counters["overlaps outside"]
        if overlaps:
            return
    pytest.fail(f"no overlap was seen with {flavour}")


def test_the_same_overlaps_are_a_violation_when_the_checker_is_told_that_all_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(History, "data_lost", lambda self: None)
    kinds = {
        broken.kind
        for seed in range(1, 20)
        for broken in carry_out(make_plan(seed, flavour="no guard")).violations
    }

    assert "exclusion" in kinds


def test_without_compare_on_release_the_simulation_finds_two_holders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from celery_redlock.protocol import node_model
    from celery_redlock.protocol.commands import Command, Script
    from celery_redlock.protocol.votes import ACKNOWLEDGED

    def delete_whatever_is_there(node: node_model.ModelNode, command: Command, _: int) -> Any:
        for key in command.keys[: len(command.keys) // 2]:
            node.keys.pop(key, None)
        return ACKNOWLEDGED

    monkeypatch.setitem(node_model._EFFECTS, Script.RELEASE, delete_whatever_is_there)

    found = simulate(range(1, 10), stop_at_first=True).violations
    assert "exclusion" in {kind for _, kind, _ in found}


def test_without_time_for_a_former_masters_votes_the_simulation_finds_two_holders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("celery_redlock.core.settings.SHORTEST_TAKEOVER", 0.0)
    plan = replace(plan_of(21, "failover"), takeover=0.0)

    assert "exclusion" in {broken.kind for broken in carry_out(plan).violations}


def test_shrinking_leaves_the_faults_that_are_needed() -> None:
    faults = tuple(Fault(at=float(n), kind="flush", node=n) for n in range(20))

    left = minimal(faults, lambda rest: {3, 17} <= {fault.node for fault in rest})

    assert [fault.node for fault in left] == [3, 17]
