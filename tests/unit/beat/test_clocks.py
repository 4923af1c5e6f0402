"""Clocks that are wrong, and schedules that tell no due times."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from celery.schedules import BaseSchedule, crontab, schedstate

from celery_redlock.core import Register, client_of, register
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.ticks.entry_state import EntryState
from tests.unit.beat.test_failover import due_times, told
from tests.unit.beat.world import START, MakeWorld, World

DAY = 86_400.0


@pytest.mark.parametrize("skew", [-2.0, 2.0])
def test_a_new_leader_whose_clock_differs_repeats_no_tick(world: World, skew: float) -> None:
    world.skew["b"] = skew
    a, _ = world.beat("a"), world.beat("b")
    world.run(10)
    world.stop(a)
    world.run(10)
    assert len(set(due_times(world.sent))) == len(world.sent)
    assert world.sent[-1].beat == "b"


def test_a_clock_that_is_behind_is_told_of(world: World) -> None:
    world.skew["b"] = -30.0
    a, _ = world.beat("a"), world.beat("b")
    world.run(10)
    world.stop(a)
    world.run(5)
    assert world.logged("behind that of the last leader, which sent 1 entries")
    assert world.logged("(job)")


def test_a_clock_that_steps_back_by_less_than_a_day_sends_nothing_twice(world: World) -> None:
    world.beat("a")
    world.run(10)
    world.skew["a"] = -20.0
    assert world.run(19) == []
    assert due_times(world.run(5)) == [due_times(world.sent)[9] + n for n in (1, 2, 3, 4)]


def test_that_a_clock_steps_back_is_told_once_each_time(world: World) -> None:
    world.beat("a")
    for skew in (0, -20, -60):
        world.skew["a"] = skew
        world.run(50)
    said = world.logged("was set back by")
    assert len(said) == 2
    assert said[0].startswith("The clock of this host was set back by 19.0 s or more.")


def test_a_clock_that_is_set_right_by_a_little_is_not_told_of(world: World) -> None:
    world.beat("a")
    world.run(10)
    world.skew["a"] = -0.3
    assert len(world.run(10)) == 10
    assert not world.logged("set back")


@pytest.mark.parametrize(
    ("found", "behind", "seconds"),
    [(1.0, 30, 120), (crontab(), 130, 300)],
    ids=["interval", "crontab"],
)
def test_nothing_is_said_to_be_sent_that_was_sent_before(
    found: Any, behind: int, seconds: int, make_world: MakeWorld
) -> None:
    world = make_world(schedule={"job": {"task": "job", "schedule": found}})
    world.log.set_level(logging.INFO)
    world.skew["b"] = -behind
    a, b = world.beat("a"), world.beat("b")
    world.run(seconds)
    world.stop(a)
    b.passes = 0
    world.run(seconds)
    assert len(world.logged("Sending due task job")) == len(world.sent)
    assert due_times(world.sent) == sorted(set(due_times(world.sent)))
    assert max(due_times(world.sent)) >= world.now - behind - 60
    assert b.passes < 2.3 * seconds


def test_a_tick_that_was_sent_before_does_not_count_as_run(world: World) -> None:
    world.skew["b"] = -30.0
    a, b = world.beat("a"), world.beat("b")
    world.run(10)
    world.stop(a)
    world.run(5)
    before = b.scheduler._inner.schedule["job"].total_run_count
    world.run(10)
    assert b.leads
    assert b.scheduler._inner.schedule["job"].total_run_count == before == len(world.sent)


def test_a_clock_that_steps_forward_makes_ticks_collapse(world: World) -> None:
    world.beat("a")
    world.run(10)
    world.skew["a"] = 600.0
    assert len(world.run(5)) == 5
    assert world.logged("Entry 'job' has no record of being sent for 600 of its due times")


def test_ticks_of_the_far_future_do_not_stop_the_schedule_for_ever(world: World) -> None:
    world.skew["a"] = 400 * DAY
    a, b = world.beat("a"), world.beat("b")
    world.run(10)
    world.stop(a)
    sent = world.run(10)
    assert b.leads
    assert len(sent) >= 8
    assert world.logged("is recorded as sent for 2027-")
    assert abs(world.recorded()["job"].due - world.now) < 2


def test_a_leader_whose_clock_is_put_right_from_the_far_future_goes_on(world: World) -> None:
    world.skew["a"] = 400 * DAY
    world.beat("a")
    world.run(10)
    del world.skew["a"]
    assert len(world.run(10)) >= 8


def test_a_record_that_makes_no_sense_is_replaced(world: World) -> None:
    redlock = client_for(world.app())
    Register(client_of(redlock), f"beat:{world.name}").write(1, {"job": (0, "nonsense")})
    world.beat("a")
    assert len(world.run(5)) == 5
    assert world.logged("The record of entry 'job' cannot be read")
    assert world.recorded()["job"].count == 5


class Relative(BaseSchedule):
    """Due so long after its last run, by its own counting."""

    def __init__(self, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = seconds

    def remaining_estimate(self, last_run_at: Any) -> timedelta:
        return last_run_at + timedelta(seconds=self.seconds) - self.now()

    def is_due(self, last_run_at: Any) -> Any:
        left = self.remaining_estimate(last_run_at).total_seconds()
        return schedstate(is_due=left <= 0, next=self.seconds if left <= 0 else left)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Relative) and other.seconds == self.seconds

    __hash__ = None  # type: ignore[assignment]


def test_a_schedule_that_counts_from_its_last_run_goes_on_counting_after_a_failover(
    world: World,
) -> None:
    a = world.beat("a")
    a.app.conf.beat_schedule = {"own": {"task": "job", "schedule": Relative(7, app=a.app)}}
    assert told(world.run(15)) == [("a", "-")] * 2
    last = world.sent[-1].at
    world.stop(a)
    b = world.beat("b")
    b.app.conf.beat_schedule = {"own": {"task": "job", "schedule": Relative(7, app=b.app)}}
    (sent,) = world.run(7)
    assert sent.at == pytest.approx(last + 7, abs=0.1)
    assert world.recorded()["own"].count == 3


@pytest.mark.parametrize(
    "conf",
    [
        {"timezone": "UTC"},
        {"timezone": "Asia/Kolkata"},
        {"timezone": "America/New_York"},
        {"enable_utc": False},
    ],
)
def test_the_apps_time_zone_changes_nothing(make_world: MakeWorld, conf: dict[str, Any]) -> None:
    world = make_world(conf=conf)
    a = world.beat("a")
    world.run(10)
    world.stop(a)
    world.beat("b")
    world.run(10)
    begun = int(START.timestamp()) + 1
    assert due_times(world.sent) == list(range(begun, begun + 20))


def test_an_entry_whose_name_the_nodes_cannot_take_is_sent_all_the_same(
    make_world: MakeWorld,
) -> None:
    world = make_world(schedule={"bad\ud800": {"task": "job", "schedule": 1.0}})
    world.beat("a")
    # Celery's line about a due task has the name as it is, which no report can be written with.
    with world.log.at_level(logging.WARNING, "celery.beat"):
        assert len(world.run(5)) == 5


def test_more_entries_than_a_node_is_told_at_once_are_recorded(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(register, "_MAX_FIELDS", 5)
    names = [f"entry-{number}" for number in range(12)]
    world = make_world(schedule={name: {"task": "job", "schedule": 60.0} for name in names})
    a = world.beat("a")
    assert len(world.run(60)) == len(names)
    world.stop(a)
    world.beat("b")
    world.run(60)
    assert len({message.id for message in world.sent}) == len(world.sent) == 2 * len(names)
    assert {state.count for state in world.recorded().values()} == {2}


def test_what_an_older_leader_recorded_counts_its_takeovers(world: World) -> None:
    tokens = []
    for name in "abc":
        beat = world.beat(name)
        world.run(5)
        tokens.append(world.sent[-1].tick.token)  # type: ignore[union-attr]
        world.stop(beat)
    found: EntryState = world.recorded()["job"]
    assert [token for token, _ in found.takeovers] == tokens
