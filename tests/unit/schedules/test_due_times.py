"""When a schedule was due last, as every beat has to find it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_redlock.schedules.due_times import due_times, latest_due, ran_already
from celery_redlock.schedules.timeutils import SECOND, from_us, to_us
from tests.support.cases import first_of
from tests.unit.tasks.ticks.simulated import at

LONG_AGO = at("1990-01-01")


def of(kind: Any, *args: Any, zone: str | None = None, utc: bool = True, **options: Any) -> Any:
    """Make a schedule of an app in this zone."""
    app = Celery("dues", set_as_current=False)
    app.conf.update(timezone=zone, enable_utc=utc)
    return kind(*args, app=app, **options)


def latest(found: Any, now: str, last: datetime = LONG_AGO) -> str | None:
    due = latest_due(found, last, at(now))
    return None if due is None else str(from_us(due))[:-6]


def following(found: Any, due: str) -> str | None:
    after = due_times(found).after(to_us(at(due)))
    return None if after is None else str(from_us(after))[:-6]


# Crontabs


@pytest.mark.parametrize(
    ("fields", "now", "due"),
    [
        ({}, "2026-03-10T12:34:56.789", "2026-03-10 12:34:00"),
        ({}, "2026-03-10T12:34:00", "2026-03-10 12:34:00"),
        ({}, "2026-03-10T12:33:59.999999", "2026-03-10 12:33:00"),
        ({"minute": 0}, "2026-03-10T00:00:00.1", "2026-03-10 00:00:00"),
        ({"minute": "*/7"}, "2026-03-10T12:06:59", "2026-03-10 12:00:00"),
        ({"minute": 30, "hour": 4}, "2026-03-10T04:29:59", "2026-03-09 04:30:00"),
        ({"hour": 22}, "2026-03-10T10:00:00", "2026-03-09 22:59:00"),
        ({"hour": 22}, "2026-03-10T22:00:30", "2026-03-10 22:00:00"),
        ({"minute": 0, "hour": 0, "day_of_week": "mon"}, "2026-03-10T10:00", "2026-03-09 00:00:00"),
        ({"minute": 0, "hour": 0, "day_of_month": 31}, "2026-05-10T10:00", "2026-03-31 00:00:00"),
        (
            {"minute": 0, "hour": 0, "day_of_month": 29, "month_of_year": 2},
            "2027-03-10T10:00",
            "2024-02-29 00:00:00",
        ),
        (
            {"minute": 0, "hour": 0, "day_of_month": 29, "month_of_year": 2, "day_of_week": "tue"},
            "2027-03-10T10:00",
            "2000-02-29 00:00:00",
        ),
    ],
)
def test_a_crontab_was_due_when_a_clock_last_showed_its_fields(
    fields: Any, now: str, due: str
) -> None:
    assert latest(of(crontab, **fields), now) == due


def test_the_29th_of_february_is_next_due_in_a_leap_year() -> None:
    leap = of(crontab, 0, 0, day_of_month=29, month_of_year=2)
    assert following(leap, "2096-02-29T00:00") == "2104-02-29 00:00:00"


def test_a_crontab_reads_the_clock_of_the_apps_zone() -> None:
    daily = of(crontab, 0, 9, zone="Asia/Tokyo")
    assert latest(daily, "2026-03-10T12:00") == "2026-03-10 00:00:00"


@pytest.mark.parametrize("utc", [True, False])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_a_crontab_is_due_once_on_each_day_through_changes_of_clocks(zone: str, utc: bool) -> None:
    nightly = of(crontab, 30, 2, zone=zone, utc=utc)
    moment, days = at("2025-12-31T20:00"), []
    while len(days) < 366:
        moment = from_us(due_times(nightly).after(to_us(moment)))
        days.append(moment.astimezone(ZoneInfo(zone)).date())
    assert {later - day for day, later in pairwise(days)} == {timedelta(days=1)}


@pytest.mark.parametrize("utc", [True, False])
def test_a_time_that_is_left_out_comes_as_late_as_it_would_have(utc: bool) -> None:
    nightly = of(crontab, 30, 2, zone="Europe/Berlin", utc=utc)
    assert following(nightly, "2026-03-28T01:30") == "2026-03-29 01:30:00"
    assert latest(nightly, "2026-03-29T01:29:59") == "2026-03-28 01:30:00"


@pytest.mark.parametrize("utc", [True, False])
def test_a_time_that_comes_twice_counts_the_first_time(utc: bool) -> None:
    nightly = of(crontab, 30, 2, zone="Europe/Berlin", utc=utc)
    assert latest(nightly, "2026-10-25T00:30") == "2026-10-25 00:30:00"
    assert latest(nightly, "2026-10-25T23:00") == "2026-10-25 00:30:00"


def test_a_crontab_for_every_hour_has_the_hour_that_comes_twice_twice() -> None:
    hourly = of(crontab, 30, zone="Europe/Berlin")
    assert latest(hourly, "2026-10-25T00:45") == "2026-10-25 00:30:00"
    assert latest(hourly, "2026-10-25T01:45") == "2026-10-25 01:30:00"


def test_clocks_that_change_at_midnight_leave_no_day_out() -> None:
    nightly = of(crontab, 30, 0, zone="Africa/Cairo")
    assert following(nightly, "2026-04-22T22:30") == "2026-04-23 22:30:00"


def test_days_that_overlap_at_midnight_are_told_in_order() -> None:
    # Clocks were put forward from 23:30 to 00:30: what was due in between fell into the next day.
    late = of(crontab, "45", "23,0", zone="America/Scoresbysund")
    moments, moment = [], at("2024-03-30T00:00")
    for _ in range(6):
        moment = from_us(due_times(late).after(to_us(moment)))
        moments.append(moment)
    assert moments == sorted(set(moments))


PATTERNS = ["*", "0", "59", "*/7", "1,2,58"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    minute=st.sampled_from(PATTERNS),
    hour=st.sampled_from(["*", "0", "2", "23", "*/5"]),
    weekday=st.sampled_from(["*", "0", "1-5"]),
    now=st.datetimes(at("2026-01-01").replace(tzinfo=None), at("2026-12-31").replace(tzinfo=None)),
)
def test_celery_finds_a_crontab_due_from_just_before_that_moment_on(
    minute: str, hour: str, weekday: str, now: datetime
) -> None:
    """Celery, asked right there, agrees: due then, and not again until now."""
    now = now.replace(tzinfo=UTC)
    found = of(crontab, minute, hour, weekday)
    due = from_us(latest_due(found, LONG_AGO, now))
    found.nowfun = lambda: due
    assert found.remaining_estimate(due - timedelta(seconds=1)) <= timedelta(0)
    found.nowfun = lambda: now
    assert found.remaining_estimate(due) > timedelta(0)


ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Scoresbysund",
    "Antarctica/Troll",
    "Africa/Cairo",
    "Australia/Lord_Howe",
    "Pacific/Apia",
]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    minute=st.sampled_from(PATTERNS),
    hour=st.sampled_from(["*", "0", "2", "23", "0,23", "*/5"]),
    weekday=st.sampled_from(["*", "0", "1-5"]),
    zone=st.sampled_from(ZONES),
    start=st.datetimes(datetime(2010, 1, 1), datetime(2030, 1, 1)),
)
def test_forwards_and_backwards_are_the_same_due_times(
    minute: str, hour: str, weekday: str, zone: str, start: datetime
) -> None:
    times = due_times(of(crontab, minute, hour, weekday, zone=zone))
    moments = [times.after(to_us(start))]
    for _ in range(30):
        moments.append(times.after(moments[-1]))
    assert all(earlier < later for earlier, later in pairwise(moments))
    assert [times.latest(moment) for moment in moments] == moments
    assert [times.latest(moment - 1) for moment in moments[1:]] == moments[:-1]


def test_a_crontab_that_can_never_be_due_has_no_due_time() -> None:
    never = of(crontab, 0, 0, day_of_month=1, month_of_year=2)
    never.day_of_month, never.month_of_year = {30}, {2}
    assert (latest(never, "2026-03-10T10:00"), following(never, "2026-03-10T10:00")) == (None, None)


# The sun

SITES = [(50.1, 8.7), (-33.9, 151.2), (40.7, -74.0), (0.0, 179.9), (59.0, 25.0)]
EVENTS = ["sunrise", "sunset", "solar_noon", "dawn_civil"]


@pytest.mark.parametrize("site", first_of(SITES))
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_of_the_sun_is_one_moment_wherever_its_search_began(
    event: str, site: tuple[float, float]
) -> None:
    found = of(solar, event, *site)
    for day in range(0, 360, 30):
        due = latest_due(found, LONG_AGO, at("2026-01-01") + timedelta(days=day))
        later = (from_us(due) + timedelta(hours=hours) for hours in range(22))
        assert {latest_due(found, LONG_AGO, now) for now in later} == {due}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Auckland"])
def test_the_apps_zone_makes_no_difference_to_the_sun(zone: str) -> None:
    assert latest(of(solar, "sunset", 50, 8, zone=zone), "2026-03-20T12:00") == (
        "2026-03-19 17:39:00"
    )


def test_an_event_of_the_sun_is_the_one_that_celery_finds() -> None:
    found = of(solar, "sunrise", 50, 8)
    start = at("2026-03-19T12:00")
    found.nowfun = lambda: start
    celerys = start + found.remaining_estimate(start)
    ours = latest_due(found, start, celerys)
    assert abs(from_us(ours) - celerys) <= timedelta(seconds=30)


def test_where_the_sun_does_not_rise_its_last_rise_counts() -> None:
    found = of(solar, "sunrise", 78, 15)
    try:
        found.remaining_estimate(at("2026-01-10"))
    except TypeError:
        pytest.skip("this version of Celery cannot look for a sun that does not rise")
    assert latest(found, "2026-01-10T12:00").startswith("2025-10-2")


def test_an_event_of_the_sun_comes_again_the_next_day() -> None:
    found = of(solar, "sunset", 50, 8)
    assert following(found, "2026-03-19T17:39") == "2026-03-20 17:41:00"


# Intervals


def test_a_stock_interval_is_due_on_the_grid_even_where_nobody_put_it_there() -> None:
    assert latest(of(schedule, 7), "1970-01-01T00:00:20") == "1970-01-01 00:00:14"


# Whatever else there is


class Aligned(BaseSchedule):  # type: ignore[misc]  # Celery is untyped
    """Due at every multiple of so many seconds."""

    every = 10

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        due = (last_run_at.timestamp() // self.every + 1) * self.every
        return timedelta(seconds=due - self.now().timestamp())

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        left = self.remaining_estimate(last_run_at).total_seconds()
        return left <= 0, left if left > 0 else self.remaining_estimate(self.now()).total_seconds()


class SinceLastRun(Aligned):
    """Due so long after it ran."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return last_run_at + timedelta(seconds=self.every) - self.now()


class Clocked(BaseSchedule):  # type: ignore[misc]  # Celery is untyped
    """Due once."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return at("2026-03-10T12:00") - self.now()


class Always(BaseSchedule):  # type: ignore[misc]  # Celery is untyped
    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return timedelta(0)


class Broken(BaseSchedule):  # type: ignore[misc]  # Celery is untyped
    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        raise RuntimeError("no idea")


class Weekdays(crontab):  # type: ignore[misc]  # Celery is untyped
    """A crontab with a mind of its own: at noon, and not on the first of a month."""

    def remaining_estimate(self, last_run_at: datetime, **options: Any) -> timedelta:
        start, now = last_run_at, self.now()
        while True:
            due = start.replace(hour=12, minute=0, second=0, microsecond=0)
            due += timedelta(days=int(due <= start))
            if due.day != 1:
                return due - now
            start = due


@pytest.mark.parametrize("every", [1, 10, 3600, 86_400, 30 * 86_400])
def test_a_schedule_of_ones_own_with_due_times_is_asked_for_them(every: int) -> None:
    found = of(Aligned)
    found.every = every
    now = at("2026-03-10T12:34:56.789")
    assert latest_due(found, LONG_AGO, now) == now.timestamp() // every * every * SECOND


@pytest.mark.parametrize("every", [1, 3, 10, 12, 15, 60, 3600, 86_400])
def test_a_schedule_of_ones_own_that_counts_from_its_last_run_cannot_be_told(every: int) -> None:
    found = of(SinceLastRun)
    found.every = every
    assert latest(found, "2026-03-10T12:34:56.789") is None


def test_a_crontab_of_ones_own_is_asked_too() -> None:
    assert latest(of(Weekdays), "2026-03-02T10:00") == "2026-02-28 12:00:00"


def test_a_schedule_that_is_due_once_was_due_then() -> None:
    assert latest(of(Clocked), "2026-03-12T10:00") == "2026-03-10 12:00:00"
    assert latest(of(Clocked), "2026-03-10T11:00") is None


def test_a_schedule_that_is_due_since_its_last_run_without_a_due_time_cannot_be_told() -> None:
    assert latest(of(Aligned), "2026-03-10T12:34:56", last=at("2026-03-10T12:34:51")) is None


def test_a_schedule_that_is_always_due_cannot_be_told() -> None:
    assert latest(of(Always), "2026-03-10T12:34:56") is None


def test_what_a_schedule_raises_is_passed_on() -> None:
    with pytest.raises(RuntimeError, match="no idea"):
        latest(of(Broken), "2026-03-10T12:34:56")


def test_a_schedule_is_left_as_it_was_by_being_asked() -> None:
    found = of(Aligned)
    before = dict(vars(found))
    latest(found, "2026-03-10T12:34:56")
    assert vars(found) == before


# What Celery finds due again


def test_an_hour_that_comes_twice_does_not_make_a_nightly_crontab_due_again() -> None:
    nightly = of(crontab, 30, 2, zone="Europe/Berlin")
    assert ran_already(nightly, at("2026-10-25T00:30:00.1"), at("2026-10-25T01:30"))


def test_a_crontab_that_has_not_run_since_it_was_due_did_not_run_already() -> None:
    nightly = of(crontab, 30, 2, zone="Europe/Berlin")
    assert not ran_already(nightly, at("2026-10-24T00:30:00.1"), at("2026-10-25T00:30"))


def test_an_event_of_the_sun_that_was_rounded_up_ran_already() -> None:
    found = of(solar, "sunset", 50, 8)
    due = at(latest(found, "2026-03-19T20:00"))
    assert ran_already(found, due - timedelta(seconds=29), due + timedelta(hours=3))


def test_moments_are_counted_to_the_microsecond() -> None:
    times = due_times(of(schedule, 0.1))
    now = to_us(at("2026-03-10T12:34:56.700000"))
    assert (times.latest(now), times.latest(now - 1)) == (now, now - 100_000)
