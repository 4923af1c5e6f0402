"""Entries that leave the schedule and return: while they were away nothing was due."""

from __future__ import annotations

from typing import Any

import pytest
from celery.schedules import crontab

from tests.unit.beat.world import Beat, MakeWorld, World

MISSED = "has no record of being sent"


@pytest.fixture(params=[60.0, crontab()], ids=["interval", "crontab"])
def world(request: pytest.FixtureRequest, make_world: MakeWorld) -> World:
    """A world with one entry that is due each minute, and one that stays in the schedule."""
    return make_world(
        schedule={
            "job": {"task": "job", "schedule": request.param},
            "other": {"task": "other", "schedule": 3600.0},
        }
    )


def take_away(beat: Beat) -> Any:
    return beat.scheduler._inner.schedule.pop("job")


def put_back(world: World, beat: Beat, entry: Any) -> None:
    """Put an entry back as a database does: as one whose last run is now."""
    beat.scheduler._inner.schedule["job"] = type(entry)(
        **{**dict(entry), "last_run_at": beat.app.now()}
    )


def test_no_run_of_an_entry_is_missed_while_it_is_not_in_the_schedule(world: World) -> None:
    a = world.beat("a")
    world.run(130)
    entry = take_away(a)
    assert world.run(600) == []
    put_back(world, a, entry)
    assert len(world.run(120)) == 2
    world.stop(a)
    assert not world.logged(MISSED)


def test_the_next_leader_knows_that_it_was_not_in_the_schedule(world: World) -> None:
    a = world.beat("a")
    world.run(130)
    entry = take_away(a)
    world.run(600)
    world.crash(a)
    own = dict(world.schedule)
    del world.schedule["job"]
    b = world.beat("b")
    world.run(600)
    put_back(world, b, entry)
    world.run(5)
    world.crash(b)
    world.schedule.update(own)
    c = world.beat("c")
    assert world.run(150)
    world.stop(c)
    assert not world.logged(MISSED)


def test_runs_that_were_due_since_it_returned_are_missed(world: World) -> None:
    a = world.beat("a")
    world.run(130)
    entry = take_away(a)
    world.run(600)
    put_back(world, a, entry)
    world.run(5)
    world.crash(a)
    world.time.sleep(300)
    b = world.beat("b")
    world.run(70)
    world.stop(b)
    assert world.logged("has no record of being sent for 4 of its due times")


def test_what_an_earlier_leader_sent_of_an_entry_that_left_is_not_late(
    world: World,
) -> None:
    a = world.beat("a")
    world.run(130)
    world.crash(a)
    del world.schedule["job"]
    world.beat("b")
    world.run(30)
    state = world.recorded()["job"]
    assert (state.is_scheduled, len(state.takeovers)) == (False, 1)
