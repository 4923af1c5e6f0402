"""What becomes of an infrequent entry when lock nodes lose their data."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from celery.schedules import crontab

from celery_redlock.core import Register, VersionedValue
from celery_redlock.errors import StaleFencingToken
from tests.unit.beat.world import MakeWorld, VirtualTime, World

FOUR = datetime(2026, 3, 10, 4, tzinfo=UTC).timestamp()
HOUR = 3600.0


@pytest.fixture
def hourly(make_world: MakeWorld) -> World:
    """A world with one entry, which has run at 4:00; now it is 4:30."""
    world = make_world(
        schedule={"hourly": {"task": "job", "schedule": crontab(minute=0)}},
        conf={"timezone": "UTC"},
        time=VirtualTime(FOUR - HOUR / 2),
    )
    world.beat("a")
    assert due_in(world, HOUR) == [FOUR]
    return world


def due_in(world: World, seconds: float) -> list[float]:
    return [message.tick.due for message in world.run(seconds) if message.tick]


def test_nodes_that_restart_empty_one_by_one_lose_no_tick(hourly: World) -> None:
    for node in hourly.nodes:
        node.restart()
        hourly.run(61)
    hourly.crash(hourly.beats[0])
    hourly.time.sleep(HOUR / 2)
    hourly.beat("b")
    assert due_in(hourly, 90) == [FOUR + HOUR]


def test_a_beat_that_leads_again_remembers_what_all_nodes_have_lost(hourly: World) -> None:
    hourly.run(HOUR / 2 - 30)
    for node in hourly.nodes:
        node.restart()
    assert due_in(hourly, 300) == [FOUR + HOUR]


def test_it_does_so_although_a_leadership_in_between_could_read_nothing(
    hourly: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, failures = Register.claim, iter([StaleFencingToken("stale", "schedule", 2, 1)])

    def claim_later(register: Register, token: int) -> dict[str, VersionedValue]:
        for failure in failures:
            raise failure
        return claim(register, token)

    monkeypatch.setattr(Register, "claim", claim_later)
    hourly.run(HOUR / 2 - 30)
    for node in hourly.nodes:
        node.restart()
    assert due_in(hourly, 300) == [FOUR + HOUR]
    assert hourly.logged("another beat leads: stale")
