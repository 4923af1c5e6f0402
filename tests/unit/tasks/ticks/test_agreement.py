"""Beats that know nothing of each other call the same tick by the same name, once and in time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule, solar

from tests.unit.schedules.test_due_times import Aligned
from tests.unit.tasks.ticks.simulated import SimulatedBeat, at

HOUR = 3600.0
NOON = "2026-03-10T12:00:00.123456"


def beat(start: str, found: Any, zone: str = "UTC", utc: bool = True, **more: Any) -> SimulatedBeat:
    conf = {"timezone": zone, "enable_utc": utc, "beat_schedule": {"e": entry(found)}}
    return SimulatedBeat(at(start), conf={**conf, **more})


def entry(found: Any) -> dict[str, Any]:
    return {"task": "job", "schedule": found}


def names(sent: list[Any]) -> set[int]:
    return {message.tick.due_us for message in sent}


SCHEDULES = [
    pytest.param(0.1, 5, id="tenths"),
    pytest.param(1 / 3, 10, id="thirds"),
    pytest.param(7, 200, id="sevens"),
    pytest.param(timedelta(minutes=3), HOUR, id="minutes"),
    pytest.param(schedule(HOUR, relative=True), 9 * HOUR, id="relative"),
    pytest.param(crontab(), HOUR, id="crontab"),
    pytest.param(crontab("*/20", "*/2"), 12 * HOUR, id="some-hours"),
    pytest.param(solar("sunset", 50, 8), 72 * HOUR, id="solar"),
    pytest.param(Aligned(), 100, id="own"),
]


@pytest.mark.parametrize(("found", "span"), SCHEDULES)
def test_beats_that_started_apart_name_the_same_ticks(found: Any, span: float) -> None:
    first = beat(NOON, found)
    other = beat(NOON, found)
    other.clock.advance(span * 0.37)
    ticks, others = names(first.run(span)), names(other.run(span * 0.63))
    since = other.start.timestamp() + span * 0.37
    assert others == {due for due in ticks if due / 1e6 > since}
    assert len(others) >= 1


@pytest.mark.parametrize("skew", [-2, 2])
@pytest.mark.parametrize(("found", "span"), SCHEDULES)
def test_beats_with_skewed_clocks_name_the_same_ticks(found: Any, span: float, skew: float) -> None:
    first, other = (beat(NOON, found) for _ in range(2))
    other.clock.advance(skew)
    ticks, others = names(first.run(span)), names(other.run(span))
    both = range(
        round((first.start.timestamp() + max(skew, 0)) * 1e6),
        round((first.start.timestamp() + span + min(skew, 0)) * 1e6),
    )
    assert {due for due in ticks if due in both} == {due for due in others if due in both}


@pytest.mark.parametrize(("found", "span"), SCHEDULES)
def test_a_beat_that_was_away_names_the_tick_that_it_catches_up_as_the_others_did(
    found: Any, span: float
) -> None:
    first, other = (beat(NOON, found) for _ in range(2))
    other.open()
    other.clock.advance(span * 0.8)
    caught_up = other.run(1e-6)
    assert names(caught_up) == {max(names(first.run(span * 0.8)))}


@pytest.mark.parametrize(("found", "span"), SCHEDULES)
def test_each_tick_is_sent_once_and_at_once(found: Any, span: float) -> None:
    sent = beat(NOON, found).run(span)
    late = [abs((message.at - message.tick.due_at).total_seconds()) for message in sent]
    assert len(names(sent)) == len(sent)
    assert max(late) < (31 if isinstance(found, solar) else 0.001)


@pytest.mark.parametrize(("found", "span"), SCHEDULES)
def test_a_beat_that_stays_behind_lets_ticks_collapse_into_the_last_one(
    found: Any, span: float
) -> None:
    one = beat(NOON, found)
    one.run(1e-6)
    for _ in range(3):
        one.clock.advance(span)
        sent = one.run(1e-6)
        assert len(sent) == 1


CHANGES = [
    pytest.param("2026-03-28T20:00", id="forward"),
    pytest.param("2026-10-24T20:00", id="back"),
]


@pytest.mark.parametrize("utc", [True, False])
@pytest.mark.parametrize("start", CHANGES)
@pytest.mark.parametrize("found", [crontab("30", "2"), crontab("*", "2"), crontab("0,30")])
def test_beats_agree_through_changes_of_clocks(found: Any, start: str, utc: bool) -> None:
    first = beat(start, found, "Europe/Berlin", utc)
    other = beat(start, found, "Europe/Berlin", utc)
    other.clock.advance(4.6 * HOUR)  # it starts in the middle of what is left out or comes twice
    ticks, others = names(first.run(31 * HOUR)), names(other.run(26.4 * HOUR))
    since = other.start.timestamp() + 4.6 * HOUR
    # One that has been there for longer may miss what Celery itself leaves out.
    assert {due for due in ticks if due / 1e6 > since} <= others
    assert len(others) == len(other.sent)


@pytest.mark.parametrize("utc", [True, False])
@pytest.mark.parametrize("start", CHANGES)
def test_a_nightly_crontab_runs_once_a_night_through_changes_of_clocks(
    start: str, utc: bool
) -> None:
    sent = beat(start, crontab("30", "2"), "Europe/Berlin", utc).run(54 * HOUR)
    nights = {message.tick.due_at.astimezone(ZoneInfo("Europe/Berlin")).date() for message in sent}
    assert (len(nights), len(sent)) == (3, 3)


@pytest.mark.parametrize("start", CHANGES)
def test_one_hour_a_day_has_its_sixty_minutes_through_changes_of_clocks(start: str) -> None:
    sent = beat(start, crontab("*", "3"), "Europe/Berlin").run(12 * HOUR)
    assert len(names(sent)) == 60


def test_a_beat_that_starts_in_the_hour_that_comes_again_sends_each_minute_once() -> None:
    one = beat("2026-10-25T01:10:10", crontab(), "Europe/Berlin")
    ticks = one.ticks(60)
    assert ticks == ["2026-10-25 01:11:00"]
    assert one.passes < 200


def test_a_solar_entry_west_of_greenwich_is_sent_once_a_day() -> None:
    one = beat("2026-03-10T02:00", solar("sunrise", 40, -74), "America/New_York")
    assert len(one.run(72 * HOUR)) == 3


@pytest.mark.parametrize("deadline", [None, 600])
def test_the_starting_deadline_of_celery_is_kept(deadline: int | None) -> None:
    one = beat("2026-03-10T03:00", crontab(0, 4), beat_cron_starting_deadline=deadline)
    one.open()
    one.clock.advance(2 * HOUR)
    caught_up = [] if deadline else ["2026-03-10 04:00:00"]
    assert one.ticks(1) == caught_up


@pytest.mark.parametrize("found", [0.1, 1 / 3, 7, crontab()])
def test_a_beat_looks_a_few_times_for_each_tick_and_not_in_a_loop(found: Any) -> None:
    one = beat(NOON, found)
    span = 20 * (60 if isinstance(found, crontab) else found)
    sent = one.run(span)
    assert len(sent) >= 19
    assert one.passes <= 4 * len(sent)


# In the hour that comes again, and in older versions in the one that is left out, Celery finds a
# nightly entry due all the time.
@pytest.mark.parametrize("start", ["2026-10-25T01:10:10", "2026-03-29T00:55:10"])
def test_an_entry_that_is_put_off_keeps_no_other_from_its_turn(start: str) -> None:
    one = beat(start, crontab("0,30", "2"), "Europe/Berlin")
    one.app.conf.beat_schedule["b"] = entry(10)
    sent = [message.tick.due_us for message in one.run(1205) if message.tick.entry == "b"]
    assert len(sent) == len(set(sent)) == 120


def test_an_entry_that_is_not_stamped_is_looked_at_as_ever() -> None:
    stamped, plain = (beat(NOON, 7) for _ in range(2))
    stamped.protect = lambda entry: False
    plain.with_ticks = False
    assert [len(stamped.run(30)), stamped.passes] == [len(plain.run(30)), plain.passes]
