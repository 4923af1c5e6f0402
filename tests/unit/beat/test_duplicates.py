"""A tick whose task is refused at its publish as a duplicate: that is no failure."""

from __future__ import annotations

import logging

import pytest

from celery_redlock.errors import DuplicateTask
from tests.unit.beat.test_failover import due_times
from tests.unit.beat.world import START, MakeWorld, World
from tests.unit.schedules.test_due_times import SinceLastRun


def refuse(world: World) -> list[str]:
    """Have each publish refused as a duplicate; return the tasks that were tried."""
    tried: list[str] = []

    def duplicate(task: str) -> Exception:
        tried.append(task)
        return DuplicateTask("Task job was not sent: other-id is queued already.", "other-id")

    world.publish_fails_with = duplicate
    return tried


def test_it_is_dealt_with_and_not_tried_again(world: World) -> None:
    world.beat("a")
    tried = refuse(world)
    world.run(10)
    assert len(tried) == 10
    assert world.recorded()["job"].count == 10


def test_it_is_told_once_and_not_as_an_error(world: World) -> None:
    world.beat("a")
    refuse(world)
    world.run(1)
    (said,) = (found for found in world.log.records if found.levelno >= logging.WARNING)
    assert said.getMessage() == (
        "Entry 'job' was due, and counts as sent: Task job was not sent: "
        "other-id is queued already."
    )


def test_the_next_tick_is_sent_in_its_time(world: World) -> None:
    world.beat("a")
    refuse(world)
    world.run(3)
    world.publish_fails_with = lambda task: None
    assert due_times(world.run(2)) == [START.timestamp() + 3.5, START.timestamp() + 4.5]


def test_an_entry_without_due_times_counts_from_it(make_world: MakeWorld) -> None:
    world = make_world(schedule={"job": {"task": "job", "schedule": SinceLastRun()}})
    world.beat("a")
    tried = refuse(world)
    world.run(60)
    assert world.recorded()["job"].count == len(tried) > 1


def test_whoever_sends_by_hand_gets_the_error(world: World) -> None:
    beat = world.beat("a")
    world.run(1)
    refuse(world)
    inner = beat.scheduler._inner
    with pytest.raises(Exception, match="other-id is queued already"):
        inner.apply_async(inner.schedule["job"], producer=inner.producer)
