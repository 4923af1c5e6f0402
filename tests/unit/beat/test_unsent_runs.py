"""What a wrapped scheduler stores of runs that were never sent: they are still due."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery.beat import Scheduler

from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.signals import beat_leader_stopped
from tests.unit.beat.test_closing import handle_sigterm
from tests.unit.beat.world import Beat, MakeWorld, World

PERIOD = 300


@pytest.fixture
def world(make_world: MakeWorld, tmp_path: Path) -> World:
    """A world with one entry that is due every five minutes, and a schedule file."""
    return make_world(
        schedule={"job": {"task": "job", "schedule": float(PERIOD)}},
        conf={
            "redlock_beat_scheduler": "celery.beat:PersistentScheduler",
            "beat_schedule_filename": str(tmp_path / "schedule"),
        },
    )


@pytest.fixture
def beat(world: World) -> Beat:
    """A beat that has sent its first tick, and whose second is due in five seconds."""
    beat = world.beat("a")
    world.run(2 * PERIOD - 5.5)
    assert len(world.sent) == 1
    return beat


def test_a_tick_is_sent_after_all_though_the_broker_was_down_until_the_leader_gave_up(
    world: World, beat: Beat
) -> None:
    gave_up = []

    def stopped(reason: str, **_: Any) -> None:
        gave_up.append(reason)

    beat_leader_stopped.connect(stopped)
    world.broker_is_down = True
    world.run(60)
    assert gave_up
    world.broker_is_down = False
    assert len(world.run(60)) == 1


def test_a_tick_that_a_leader_could_not_send_is_sent_by_its_successor(
    world: World, beat: Beat
) -> None:
    world.publish_fails_with = lambda task: ValueError("no message can be made of it")
    assert world.run(60) == []
    world.stop(beat)
    world.publish_fails_with = lambda task: None
    world.beat("b")
    assert len(world.run(60)) == 1


def test_a_tick_whose_sending_was_cut_short_is_sent_by_the_successor(
    world: World, beat: Beat
) -> None:
    world.publish_fails_with = lambda task: handle_sigterm(beat)
    with pytest.raises(SystemExit):
        world.run(60)
    world.stop(beat)
    world.publish_fails_with = lambda task: None
    world.beat("b")
    assert len(world.run(60)) == 1


def test_a_run_that_was_sent_is_recorded_where_it_cannot_be_stored(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(conf={"beat_sync_every": 1})
    world.beat("a")
    world.run(1)

    def fail(self: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Scheduler, "sync", fail)
    world.run(5)
    assert world.recorded()["job"].count == len(world.sent) == 6
    assert "no space left" in world.log.text


def test_a_record_that_fails_keeps_no_tick_from_being_sent(
    world: World, beat: Beat, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run(1)

    def fail(*_: Any) -> None:
        raise RuntimeError("a broken record")

    monkeypatch.setattr(ScheduleState, "record_sent", fail)
    assert len(world.run(2 * PERIOD)) == 2
    assert "a broken record" in world.log.text


def test_storing_runs_while_one_is_not_sent_repeats_none(world: World, beat: Beat) -> None:
    world.publish_fails_with = lambda task: ValueError("no message can be made of it")
    world.run(60)
    beat.scheduler._inner.sync()
    world.publish_fails_with = lambda task: None
    assert len(world.run(PERIOD / 2)) == 1
