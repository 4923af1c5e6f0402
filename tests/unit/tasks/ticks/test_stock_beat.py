"""An ordinary beat that starts where this package is loaded."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import Task, signals
from celery.beat import BeatLazyFunc, Scheduler, Service
from celery.schedules import crontab

from celery_redlock.beat import RedlockScheduler
from tests.unit.tasks.ticks.simulated import START, SimulatedBeat, messages_of


class Tame(Scheduler):  # type: ignore[misc]  # Celery is untyped
    """A scheduler that knows its way around ticks."""

    stamps_ticks = True


@pytest.fixture
def beat(caplog: pytest.LogCaptureFixture) -> SimulatedBeat:
    caplog.set_level(logging.INFO)
    made = SimulatedBeat(START, with_ticks=False)
    made.task("plain", base=Task, lock_key=None)
    return made


def start(made: SimulatedBeat, scheduler: Any = Scheduler, **schedule: Any) -> Any:
    """Start the beat as `celery beat` does, as far as its first pass."""
    made.app.conf.beat_schedule = schedule
    return announce(made, scheduler)


def announce(made: SimulatedBeat, scheduler: Any = Scheduler) -> Any:
    service = Service(made.app, scheduler_cls=scheduler)
    made.scheduler = service.scheduler
    signals.beat_init.send(sender=service)
    return made.scheduler


def every(seconds: Any, task: str = "job", **more: Any) -> dict[str, Any]:
    return {"task": task, "schedule": seconds, **more}


@pytest.mark.parametrize("task", ["job", "elsewhere"], ids=["", "tasks that are not loaded here"])
def test_it_stamps_what_it_sends(beat: SimulatedBeat, task: str) -> None:
    start(beat, e=every(60, task))
    assert beat.ticks(120) == ["2026-03-10 12:01:00", "2026-03-10 12:02:00"]


def test_only_entries_whose_tasks_lock_are_stamped(beat: SimulatedBeat) -> None:
    start(beat, e=every(60), other=every(60, "plain"))
    stamped = {sent.task: sent.header is not None for sent in beat.run(90)}
    assert stamped == {"job": True, "plain": False}


def test_one_line_says_which_ticks_are_identified(
    beat: SimulatedBeat, caplog: pytest.LogCaptureFixture
) -> None:
    start(beat, b=every(60), a=every(crontab()), d=every(60, "plain"), c=every(7, "plain"))
    (line,) = messages_of(caplog, logging.INFO)
    assert "identified by name and due time: a, b." in line
    assert "because their tasks do not lock: c, d." in line


def test_a_large_schedule_is_not_listed_in_full(
    beat: SimulatedBeat, caplog: pytest.LogCaptureFixture
) -> None:
    start(beat, **{f"e{n:03}": every(60) for n in range(50)})
    (line,) = messages_of(caplog, logging.INFO)
    assert "e019 and 30 more." in line
    assert "do not lock: none." in line


def test_an_empty_schedule_says_nothing(
    beat: SimulatedBeat, caplog: pytest.LogCaptureFixture
) -> None:
    start(beat)
    assert messages_of(caplog, logging.INFO) == []


def test_an_entry_without_a_name_is_warned_of(
    beat: SimulatedBeat, caplog: pytest.LogCaptureFixture
) -> None:
    beat.app.finalize()
    beat.app.add_periodic_task(60, beat.job.s(1, b=2))
    beat.app.add_periodic_task(60, beat.job.s(1), name="named")
    announce(beat)
    beat.run(200)
    (warning,) = messages_of(caplog)
    assert "Entry 'job(1, b=2)' of the schedule has no name of its own" in warning
    assert "add_periodic_task(..., name='...')" in warning


@pytest.mark.parametrize(
    ("task", "args", "warnings"),
    [("job", (BeatLazyFunc(dict),), 1), ("plain", (), 0)],
    ids=["whose text has an address", "not where it is not stamped"],
)
def test_an_entry_without_a_name_is_warned_of_also(
    beat: SimulatedBeat, caplog: pytest.LogCaptureFixture, task: str, args: Any, warnings: int
) -> None:
    beat.app.finalize()
    beat.app.add_periodic_task(60, beat.app.tasks[task].s(*args))
    announce(beat)
    beat.run(90)
    assert len(messages_of(caplog)) == warnings


def test_an_entry_without_a_name_that_comes_later_is_warned_of(
    beat: SimulatedBeat, caplog: pytest.LogCaptureFixture
) -> None:
    start(beat, e=every(60))
    beat.run(1)
    beat.scheduler.add(name="job(7)", task="job", args=(7,), schedule=crontab())
    beat.run(1)
    assert "Entry 'job(7)' of the schedule has no name of its own" in messages_of(caplog)[0]


@pytest.mark.parametrize("scheduler", [Tame, RedlockScheduler])
def test_a_scheduler_that_stamps_ticks_itself_is_left_alone(
    beat: SimulatedBeat, scheduler: Any
) -> None:
    made = start(beat, scheduler, e=every(60))
    assert type(made) is scheduler
    made.close()


def test_a_beat_that_is_announced_twice_is_stamped_once(beat: SimulatedBeat) -> None:
    scheduler = start(beat, e=every(60))
    own = type(scheduler)
    service = Service(beat.app)
    service.__dict__["scheduler"] = scheduler
    signals.beat_init.send(sender=service)
    assert type(scheduler) is own


def test_a_setting_that_cannot_work_does_not_stop_the_beat(
    beat: SimulatedBeat, caplog: pytest.LogCaptureFixture
) -> None:
    beat.app.finalize()
    beat.app.conf.redlock_max_ttl = "long"
    start(beat, e=every(60))
    assert [sent.header for sent in beat.run(61)] == [None]
    (line,) = messages_of(caplog)
    assert "redlock_max_ttl='long'" in line


def test_a_schedule_that_cannot_be_read_at_the_start_does_not_stop_the_beat(
    beat: SimulatedBeat, caplog: pytest.LogCaptureFixture
) -> None:
    class Moody(Scheduler):  # type: ignore[misc]  # Celery is untyped
        broken = False

        def get_schedule(self) -> Any:
            if self.broken:
                raise OSError("no database")
            return self.data

        schedule = property(get_schedule, Scheduler.set_schedule)

    beat.app.conf.beat_schedule = {"e": every(60)}
    beat.scheduler = Moody(beat.app)
    service = Service(beat.app)
    service.__dict__["scheduler"] = beat.scheduler
    beat.scheduler.broken = True
    signals.beat_init.send(sender=service)
    beat.scheduler.broken = False
    assert "The schedule cannot be read yet" in messages_of(caplog)[0]
    assert [sent.tick is None for sent in beat.run(120)] == [False, False]
