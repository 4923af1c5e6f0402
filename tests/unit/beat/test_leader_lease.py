"""A leader that hangs does not lead for ever."""

from __future__ import annotations

import pytest
from celery.beat import Scheduler

from celery_redlock.core import Register
from celery_redlock.tasks.config.client import client_for
from tests.unit.beat.world import MakeWorld, World


def test_a_pass_that_does_not_end_costs_the_lead(world: World) -> None:
    a, b = world.beat("a"), world.beat("b")
    world.run(10)
    # It hangs in a pass: its watchdog goes on, its passes do not.
    a.next_at = world.now + 1000
    world.run(130)
    assert not a.leads
    assert b.leads


def test_a_long_pass_does_not(world: World) -> None:
    a, b = world.beat("a"), world.beat("b")
    world.run(10)
    a.next_at = world.now + 80
    world.run(85)
    assert a.leads
    assert not b.leads


def test_passes_that_end_keep_the_lead_for_as_long_as_they_go_on(make_world: MakeWorld) -> None:
    world = make_world(
        schedule={"hourly": {"task": "job", "schedule": 3600.0}},
        conf={"redlock_beat_ttl": 60, "redlock_beat_retry": 30},
    )
    a = world.beat("a")
    world.run(30 * 3600)
    assert a.leads
    assert len({message.tick.token for message in world.sent if message.tick}) == 1


def test_a_leader_that_was_outranked_writes_nothing_although_its_lease_seems_to_hold(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = world.beat("a")
    world.run(5)
    written: list[str] = []
    monkeypatch.setattr(Scheduler, "close", lambda self: written.append("closed"))
    token = world.sent[-1].tick.token  # type: ignore[union-attr]
    Register(client_for(a.app), f"beat:{world.name}").claim((token or 0) + 1)
    world.run(1.2)
    assert written == []
    assert world.logged("another beat leads")
