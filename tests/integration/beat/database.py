"""
Scenes with django-celery-beat, each in a process of its own: Django is set up once per process.

Run as a module with the scene's name and the database's path.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from multiprocessing import util
from typing import Any

import django
import pytest
import time_machine
from django.conf import settings
from django.core.management import call_command

from celery_redlock.transport.memory import VirtualTime
from tests.unit.beat.world import START, World, worlds

Scene = Callable[["Database"], None]

SCENES: dict[str, Scene] = {}


def scene(function: Scene) -> Scene:
    SCENES[function.__name__] = function
    return function


class MachineTime(VirtualTime):
    """Time that the whole process reads: the models have no clock that could be given to them."""

    def __init__(self) -> None:
        self.traveller = time_machine.travel(START, tick=False).start()
        super().__init__(START.timestamp())

    @property
    def _now(self) -> float:
        return self._moment

    @_now.setter
    def _now(self, moment: float) -> None:
        self._moment = moment
        self.traveller.move_to(moment)


class Database:
    """A world whose beats wrap the scheduler of django-celery-beat, all on one database."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._worlds = worlds(monkeypatch)
        self.world: World = next(self._worlds)(
            schedule={},
            conf={"redlock_beat_scheduler": "django", "timezone": "UTC"},
            time=MachineTime(),
        )

    def interval(self, seconds: int, name: str = "job", **more: Any) -> Any:
        """Put an entry into the database."""
        from django_celery_beat.models import IntervalSchedule, PeriodicTask

        every, _ = IntervalSchedule.objects.get_or_create(every=seconds, period="seconds")
        fields = {"last_run_at": self.now, **more}
        return PeriodicTask.objects.create(name=name, task="job", interval=every, **fields)

    def clocked(self, moment: datetime, name: str = "job") -> Any:
        """Put an entry into the database that is due once."""
        from django_celery_beat.models import ClockedSchedule, PeriodicTask

        once = ClockedSchedule.objects.create(clocked_time=moment)
        return PeriodicTask.objects.create(name=name, task="job", clocked=once, one_off=True)

    @property
    def now(self) -> datetime:
        return datetime.now(UTC)

    def send_and_die(self) -> None:
        """Let a leader send what is due, once, and crash before it has stored that."""
        a = self.world.beat("a")
        self.world.run(1)
        a.scheduler._inner.sync = lambda: None
        assert len(self.world.run(5)) == 1
        self.world.crash(a)

    def stored(self, name: str = "job") -> Any:
        from django_celery_beat.models import PeriodicTask

        return PeriodicTask.objects.get(name=name)


@scene
def entries_of_the_database_are_sent_once_by_whoever_leads(db: Database) -> None:
    db.interval(1)
    a, _ = db.world.beat("a"), db.world.beat("b")
    assert len(db.world.run(10)) == 10
    db.world.stop(a)
    db.world.run(10)
    assert len({message.id for message in db.world.sent}) == len(db.world.sent) >= 18
    assert {message.beat for message in db.world.sent} == {"a", "b"}


@scene
def loading_the_schedule_anew_repeats_nothing(db: Database) -> None:
    from django_celery_beat.models import PeriodicTasks

    db.interval(60)
    db.world.beat("a")
    assert len(db.world.run(60)) == 1
    # Somebody has put an old state back, and says that it has changed.
    job = db.stored()
    type(job).objects.filter(pk=job.pk).update(last_run_at=db.now - timedelta(days=3))
    db.world.beats[0].scheduler._inner._dirty.clear()
    PeriodicTasks.update_changed()
    PeriodicTasks.objects.update(last_update=datetime.now(UTC) + timedelta(hours=1))
    assert db.world.run(50) == []
    assert len(db.world.run(20)) == 1


@scene
def a_leader_that_stops_writes_its_runs(db: Database) -> None:
    db.interval(1)
    a = db.world.beat("a")
    sent = db.world.run(10)
    db.world.stop(a)
    assert db.stored().total_run_count == len(sent)


@scene
def a_leader_that_lost_its_lease_writes_nothing_not_even_at_its_end(db: Database) -> None:
    db.interval(1)
    a, b = db.world.beat("a"), db.world.beat("b")
    db.world.run(10)
    inner = a.scheduler._inner
    before = db.stored().total_run_count
    assert inner._dirty
    a.frozen = True
    inner.sync()  # what a tick in the middle of which it was frozen would do
    after = db.stored().total_run_count
    assert after > before, "it may while it leads"
    db.world.run(5)
    db.world.crash(b)
    db.world.time.sleep(20)
    a.frozen = False
    inner._dirty.add("job")
    inner._schedule["job"].model.total_run_count = 1000
    inner.sync()
    db.world.pass_of(a)
    util._run_finalizers()
    assert not a.leads
    assert db.stored().total_run_count == after


@scene
def a_tick_that_could_not_be_sent_is_sent_by_the_next_leader(db: Database) -> None:
    db.interval(3600)
    a = db.world.beat("a")
    db.world.run(3595)
    db.world.publish_fails_with = lambda task: ValueError("no message can be made of it")
    db.world.run(60)
    db.world.stop(a)
    assert db.world.sent == []
    assert db.stored().total_run_count == 0
    db.world.publish_fails_with = lambda task: None
    db.world.beat("b")
    assert len(db.world.run(60)) == 1


@scene
def a_standby_does_not_touch_the_database(db: Database) -> None:
    from django.db import connection

    db.interval(1)
    db.world.beat("a")
    db.world.run(3)
    b = db.world.beat("b")
    said: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        said.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        for _ in range(5):
            db.world.time.sleep(2)
            db.world.beats[0].watchdog.renew()
            db.world.pass_of(b)
    assert said == []


@scene
def a_task_that_is_to_run_once_runs_once_though_its_leader_dies(db: Database) -> None:
    db.interval(5, one_off=True)
    db.send_and_die()
    assert db.stored().total_run_count == 0, "the database knows nothing of it"
    db.world.beat("b")
    db.world.run(60)
    assert len(db.world.sent) == 1
    assert not db.stored().enabled


@scene
def a_task_that_is_enabled_again_to_run_once_more_does(db: Database) -> None:
    db.interval(5, one_off=True)
    a = db.world.beat("a")
    db.world.run(20)
    db.world.stop(a)
    assert len(db.world.sent) == 1
    job = db.stored()
    job.enabled = True
    job.save()
    type(job).objects.filter(pk=job.pk).update(date_changed=db.now, last_run_at=db.now)
    db.world.time.sleep(1)
    db.world.beat("b")
    db.world.run(20)
    assert len(db.world.sent) == 2


@scene
def a_task_with_a_start_time_that_is_made_again_runs_once_more(db: Database) -> None:
    from django_celery_beat.models import PeriodicTasks

    db.interval(5, one_off=True, start_time=db.now, last_run_at=None)
    db.interval(3600, "other")
    db.world.beat("a")
    assert len(db.world.run(20)) == 1
    db.stored().delete()
    PeriodicTasks.objects.update(last_update=db.now)
    db.world.run(20)
    db.interval(5, one_off=True, start_time=db.now, last_run_at=None)
    PeriodicTasks.objects.update(last_update=db.now)
    assert len(db.world.run(20)) == 1
    assert not db.stored().enabled


@scene
def no_run_of_a_task_is_missed_while_it_is_disabled(db: Database) -> None:
    from django_celery_beat.models import PeriodicTasks

    reported: list[logging.LogRecord] = []
    watching = logging.Handler()
    watching.emit = reported.append  # type: ignore[method-assign]
    logging.getLogger("celery_redlock.beat.unsent").addHandler(watching)

    def enable(enabled: bool) -> None:
        job = db.stored()
        job.enabled = enabled
        job.save()
        PeriodicTasks.objects.update(last_update=db.now)

    db.interval(5)
    db.interval(3600, "other")
    a = db.world.beat("a")
    db.world.run(20)
    enable(False)
    assert len(db.world.run(600)) <= 1
    enable(True)
    assert len(db.world.run(30)) >= 4
    db.world.stop(a)
    assert [record.getMessage() for record in reported] == []


@scene
def a_clocked_task_that_is_saved_after_its_time_is_sent_once(db: Database) -> None:
    db.interval(3600, "other")
    a = db.world.beat("a")
    db.world.run(1)
    db.clocked(db.now - timedelta(seconds=1))
    assert len(db.world.run(10)) == 1
    db.world.stop(a)
    assert db.stored().total_run_count == 1
    db.world.beat("b")
    assert db.world.run(60) == []


@scene
def a_clocked_task_is_sent_at_its_time_though_that_was_put_before_it_was_saved(
    db: Database,
) -> None:
    from django_celery_beat.models import ClockedSchedule

    job = db.clocked(db.now + timedelta(minutes=4))
    db.world.beat("a")
    db.world.run(60)
    assert "job" in db.world.recorded()
    job.clocked = ClockedSchedule.objects.create(clocked_time=db.now - timedelta(hours=1))
    job.save()
    assert len(db.world.run(20)) == 1


@scene
def a_clocked_task_runs_once_though_its_leader_dies(db: Database) -> None:
    db.clocked(db.now + timedelta(seconds=2))
    db.send_and_die()
    db.world.beat("b")
    db.world.run(60)
    assert len(db.world.sent) == 1
    assert not db.stored().enabled


@scene
def a_run_is_stored_by_the_write_that_it_asks_for(db: Database) -> None:
    db.world.conf["beat_sync_every"] = 1
    db.interval(5)
    db.world.beat("a")
    assert len(db.world.run(5)) == 1
    assert db.stored().total_run_count == 1


@scene
def a_run_that_could_not_be_sent_at_first_is_stored_once_it_was(db: Database) -> None:
    db.world.conf["beat_sync_every"] = 1
    db.interval(60)
    db.world.beat("a")
    db.world.broker_is_down = True
    db.world.run(65)
    assert db.stored().total_run_count == 0
    db.world.broker_is_down = False
    assert len(db.world.run(10)) == 1
    assert db.stored().total_run_count == 1


@scene
def entries_of_the_settings_work_as_well(db: Database) -> None:
    db.world.schedule["conf"] = {"task": "job", "schedule": 1.0}
    db.world.beat("a")
    sent = db.world.run(5)
    assert {message.tick.entry for message in sent if message.tick} == {"conf"}


def main(name: str, path: str) -> None:
    settings.configure(
        INSTALLED_APPS=["django_celery_beat"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": path}},
        MIGRATION_MODULES={"django_celery_beat": None},  # its tables as they are now, at once
        USE_TZ=True,
        TIME_ZONE="UTC",
    )
    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)
    with pytest.MonkeyPatch.context() as monkeypatch:
        SCENES[name](Database(monkeypatch))


if __name__ == "__main__":
    main(*sys.argv[1:])
