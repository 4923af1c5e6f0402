"""The `DatabaseScheduler` of django-celery-beat, which makes its entries anew all the time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import time_machine
from celery.schedules import crontab, solar

from celery_redlock.schedules.due_times import latest_due
from celery_redlock.schedules.timeutils import from_us
from tests.support.django_site import set_up, use_databases
from tests.unit.tasks.ticks.simulated import START, Clock, SimulatedBeat, at

set_up()

from django.apps import apps  # noqa: E402  # Django has to be set up first
from django.db import connections  # noqa: E402
from django_celery_beat.clockedschedule import clocked  # noqa: E402
from django_celery_beat.models import (  # noqa: E402
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
)
from django_celery_beat.schedulers import DatabaseScheduler  # noqa: E402
from django_celery_beat.tzcrontab import TzAwareCrontab  # noqa: E402


@pytest.fixture
def database(tmp_path: Path) -> Iterator[None]:
    name = str(tmp_path / "schedule.sqlite")
    use_databases({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": name}})
    with connections["default"].schema_editor() as editor:
        for model in apps.get_app_config("django_celery_beat").get_models():
            editor.create_model(model)
    yield
    connections["default"].close()


class Machine(Clock):
    """A clock that is the whole process's: the scheduler asks for no other."""

    def __init__(self, moment: datetime) -> None:
        super().__init__(moment)
        self.travel = time_machine.travel(moment, tick=False)
        self.traveller = self.travel.start()

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self.traveller.move_to(self.moment)


@pytest.fixture
def beat(database: None) -> Iterator[SimulatedBeat]:
    made = SimulatedBeat(START, scheduler_class=DatabaseScheduler)
    made.clock = Machine(START)
    yield made
    # It would write to the database at the end of the process.
    if hasattr(made, "scheduler"):
        made.scheduler._finalize.cancel()
    made.clock.travel.stop()


def every(seconds: int, name: str = "e", **more: Any) -> PeriodicTask:
    interval, _ = IntervalSchedule.objects.get_or_create(every=seconds, period="seconds")
    return PeriodicTask.objects.create(name=name, task="job", interval=interval, **more)


def dues(sent: list[Any]) -> list[str]:
    return [f"{message.tick.due_at:%H:%M:%S}" for message in sent if message.tick]


def test_an_interval_in_the_database_is_on_the_grid(beat: SimulatedBeat) -> None:
    every(20)
    assert dues(beat.run(70)) == ["12:00:20", "12:00:40", "12:01:00"]


def test_it_stays_there_when_the_schedule_is_read_again_by_itself(beat: SimulatedBeat) -> None:
    every(60)
    assert [due[-2:] for due in dues(beat.run(900))] == ["00"] * 15


def test_an_interval_that_is_changed_in_the_database_is_on_its_new_grid(
    beat: SimulatedBeat,
) -> None:
    task = every(60)
    beat.run(70)
    task.interval = IntervalSchedule.objects.create(every=25, period="seconds")
    task.save()
    assert [sent.tick.due % 25 for sent in beat.run(100)] == [0, 0, 0, 0]


def test_a_task_that_is_added_to_the_database_is_stamped(beat: SimulatedBeat) -> None:
    every(60)
    beat.run(10)
    every(20, "new")
    assert {sent.tick.entry for sent in beat.run(60)} == {"e", "new"}


def test_headers_in_the_database_stay(beat: SimulatedBeat) -> None:
    every(20, headers='{"mine": 1}')
    (sent,) = beat.run(20)
    assert (sent.headers["mine"], sent.headers["periodic_task_name"]) == (1, "e")
    assert sent.tick.entry == "e"


def test_run_counts_and_last_runs_are_stored_as_ever(beat: SimulatedBeat) -> None:
    every(20)
    beat.run(70)
    beat.scheduler.sync()
    stored = PeriodicTask.objects.get(name="e")
    assert (stored.total_run_count, stored.last_run_at >= at("2026-03-10T12:01:00")) == (3, True)


def test_a_task_that_starts_later_names_the_last_tick_before_its_start(beat: SimulatedBeat) -> None:
    every(60, start_time=at("2026-03-10T12:05:30"))
    assert dues(beat.run(400)) == ["12:05:00", "12:06:00"]


@pytest.mark.parametrize("clock", ["12:01:30", "11:00:00"], ids=["in time", "entered too late"])
def test_a_clocked_task_is_identified_by_its_time(beat: SimulatedBeat, clock: str) -> None:
    moment = ClockedSchedule.objects.create(clocked_time=at(f"2026-03-10T{clock}"))
    PeriodicTask.objects.create(name="once", task="job", clocked=moment, one_off=True)
    assert dues(beat.run(200)) == [clock]


def test_a_crontab_in_the_database_is_due_in_its_own_zone(beat: SimulatedBeat) -> None:
    tokyo = CrontabSchedule.objects.create(minute="5", hour="21", timezone="Asia/Tokyo")
    PeriodicTask.objects.create(name="t", task="job", crontab=tokyo)
    assert dues(beat.run(600)) == ["12:05:00"]


def test_a_schedule_in_the_settings_is_put_into_the_database_and_stamped(
    beat: SimulatedBeat,
) -> None:
    beat.app.conf.beat_schedule = {
        "i": {"task": "job", "schedule": 20},
        "c": {"task": "job", "schedule": crontab()},
        "s": {"task": "job", "schedule": solar("solar_noon", 51.5, 0)},
    }
    sent = beat.run(900)
    assert {message.tick.entry for message in sent} == {"i", "c", "s"}


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_a_zoned_crontab_is_the_same_in_any_apps_zone(beat: SimulatedBeat, zone: str) -> None:
    beat.app.conf.timezone = zone
    found = TzAwareCrontab("30", "9", tz=ZoneInfo("Asia/Tokyo"), app=beat.app)
    due = latest_due(found, START - timedelta(days=3), at("2026-03-10T12:00"))
    assert from_us(due) == at("2026-03-10T00:30")


def test_a_clocked_schedule_without_a_zone_is_utc(beat: SimulatedBeat) -> None:
    due = latest_due(clocked(datetime(2026, 3, 10, 11)), START, at("2026-03-10T12:00"))
    assert from_us(due) == at("2026-03-10T11:00")
