"""Intervals on a grid that begins with the epoch."""

from __future__ import annotations

import copy
import pickle
import pickletools
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_redlock.schedules.interval import GridSchedule, on_grid
from celery_redlock.schedules.timeutils import from_us, to_us
from tests.unit.tasks.ticks.simulated import at

NOW = at("2026-03-10T12:34:56.789012")
NOBODY_RAN_YET = at("0001-01-01")


def gridded(every: Any, now: datetime = NOW, zone: str = "UTC", **options: Any) -> GridSchedule:
    app = Celery("grid", set_as_current=False)
    app.conf.timezone = zone
    made = on_grid(schedule(every, app=app, nowfun=lambda: now, **options))
    assert made is not None
    return made


def due_times(every: Any, start: str, count: int, zone: str = "UTC", **options: Any) -> list[str]:
    """Return the first due times after a moment, in UTC."""
    grid, moment, found = gridded(every, zone=zone, **options).grid, to_us(at(start)), []
    for _ in range(count):
        moment = grid.after(moment)
        found.append(from_us(moment).isoformat()[:-6])
    return found


@pytest.mark.parametrize(
    "every",
    [
        0.1,
        1 / 3,
        0.7,
        7,
        86_400,
        timedelta(minutes=5),
        timedelta(days=7),
        timedelta(microseconds=3),
    ],
)
def test_each_due_time_is_a_whole_multiple_of_the_interval(every: Any) -> None:
    on = gridded(every)
    assert (
        to_us(NOW + on.remaining_estimate(NOW)) % (on.run_every // timedelta(microseconds=1)) == 0
    )


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    step=st.integers(1, 10**14),
    now=st.integers(0, 4 * 10**15),
)
def test_a_point_is_reached_before_the_next_one_comes(step: int, now: int) -> None:
    grid = gridded(timedelta(microseconds=step)).grid
    assert (grid.latest(now) % step, grid.after(now) - grid.latest(now)) == (0, step)
    assert grid.latest(now) <= now < grid.after(now)


def test_it_is_due_once_it_has_not_run_since_the_last_point() -> None:
    on = gridded(60)
    assert on.is_due(at("2026-03-10T12:33:59.999999")) == (True, 3.210988)
    assert on.is_due(at("2026-03-10T12:34:00")) == (False, 3.210988)


def test_whoever_ran_at_another_time_waits_for_the_same_point() -> None:
    on = gridded(60)
    ran = [at("2026-03-10T12:34:00"), at("2026-03-10T12:34:29.5"), NOW]
    assert len({on.is_due(moment) for moment in ran}) == 1


def test_what_never_ran_is_due_once_and_then_at_the_next_point() -> None:
    assert gridded(60).is_due(NOBODY_RAN_YET) == (True, 3.210988)


def test_a_run_a_little_ahead_of_the_clock_is_not_repeated() -> None:
    on = gridded(60)
    assert on.is_due(at("2026-03-10T12:35:01")) == (False, 63.210988)


def test_a_run_further_ahead_than_the_interval_is_not_believed() -> None:
    assert gridded(60).is_due(at("2027-01-01T00:00:00")) == (True, 3.210988)


def test_a_last_run_without_a_zone_is_utc() -> None:
    on = gridded(60, zone="Asia/Tokyo")
    assert on.is_due(datetime(2026, 3, 10, 12, 34, 0)).is_due is False
    assert on.is_due(datetime(2026, 3, 10, 12, 33, 59)).is_due is True


def test_the_zone_of_the_last_run_makes_no_difference() -> None:
    on = gridded(60)
    ran = at("2026-03-10T12:34:00")
    zones = ["UTC", "Asia/Kathmandu", "America/New_York"]
    assert len({on.is_due(ran.astimezone(ZoneInfo(zone))) for zone in zones}) == 1


def test_a_day_begins_at_midnight_in_utc() -> None:
    assert due_times(86_400, "2026-03-28T05:00", 2, zone="Europe/Berlin") == [
        "2026-03-29T00:00:00",
        "2026-03-30T00:00:00",
    ]


def test_a_relative_day_begins_at_midnight_on_the_apps_clock_through_changes_of_clocks() -> None:
    days = {"every": timedelta(days=1), "count": 3, "zone": "Europe/Berlin", "relative": True}
    assert due_times(start="2026-03-28T05:00", **days) == [
        "2026-03-28T23:00:00",
        "2026-03-29T22:00:00",
        "2026-03-30T22:00:00",
    ]
    assert due_times(start="2026-10-24T05:00", **days) == [
        "2026-10-24T22:00:00",
        "2026-10-25T23:00:00",
        "2026-10-26T23:00:00",
    ]


def test_a_relative_week_is_seven_midnights() -> None:
    weeks = due_times(timedelta(days=7), "2026-03-01", 3, zone="Europe/Berlin", relative=True)
    assert weeks == ["2026-03-04T23:00:00", "2026-03-11T23:00:00", "2026-03-18T23:00:00"]


def test_relative_hours_are_full_hours_where_the_zone_is_off_by_less() -> None:
    hours = due_times(7200, "2026-03-10T00:10", 3, zone="Asia/Kolkata", relative=True)
    assert [hour[-8:] for hour in hours] == ["01:30:00", "03:30:00", "05:30:00"]


def test_relative_hours_go_on_while_clocks_are_put_back() -> None:
    hours = due_times(3600, "2026-10-25T00:30", 3, zone="Europe/Berlin", relative=True)
    assert [hour[-8:] for hour in hours] == ["01:00:00", "02:00:00", "03:00:00"]


def test_a_relative_interval_is_rounded_down_to_whole_units_as_in_celery() -> None:
    hours = due_times(timedelta(minutes=90), "2026-03-10T00:10", 3, relative=True)
    assert [hour[-8:] for hour in hours] == ["01:00:00", "02:00:00", "03:00:00"]


def test_a_relative_interval_below_a_second_is_as_any_other() -> None:
    moments = due_times(0.5, "2026-03-10T00:00:00.1", 2, relative=True)
    assert moments == ["2026-03-10T00:00:00.500000", "2026-03-10T00:00:01"]


def test_it_equals_the_stock_schedule_in_both_directions() -> None:
    stock = schedule(60)
    on = on_grid(stock)
    assert on == stock
    assert stock == on
    assert on != schedule(61)


def test_it_is_shown_as_the_stock_schedule() -> None:
    assert repr(on_grid(schedule(60))) == repr(schedule(60))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_is_stored_of_it_knows_nothing_of_this_package(protocol: int) -> None:
    stored = pickle.dumps(on_grid(schedule(60, relative=True)), protocol)
    texts = [str(found) for _, found, _ in pickletools.genops(stored) if found is not None]
    assert not [text for text in texts if "redlock" in text]
    read = pickle.loads(stored)
    assert (type(read), read.run_every.seconds, read.relative) == (schedule, 60, True)


def test_a_copy_of_it_is_the_stock_schedule() -> None:
    assert type(copy.deepcopy(on_grid(schedule(60)))) is schedule


def test_what_is_on_its_grid_stays_as_it_is() -> None:
    assert on_grid(on_grid(schedule(60))) is None


class Twice(schedule):  # type: ignore[misc]  # Celery is untyped
    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return super().remaining_estimate(last_run_at) / 2


class Named(schedule):  # type: ignore[misc]  # Celery is untyped
    title = "mine"


@pytest.mark.parametrize("own", [Twice(60), schedule(0), schedule(-1), crontab(), 60])
def test_what_is_no_plain_interval_has_no_grid(own: Any) -> None:
    assert on_grid(own) is None


def test_a_kind_of_interval_that_changes_no_due_time_has_a_grid_and_is_stored_as_itself() -> None:
    assert type(pickle.loads(pickle.dumps(on_grid(Named(60))))) is Named
