"""From where an entry goes on, how many ticks were missed, and what a tick is sent as."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery.schedules import crontab, schedule

from celery_redlock.beat.inner_scheduler import (
    catch_up,
    task_id_for,
)
from celery_redlock.beat.unsent import MAX_MISSED_COUNT, missed_count
from celery_redlock.schedules.interval import GridSchedule
from celery_redlock.schedules.timeutils import to_us
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.ticks.entry_state import EntryState

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


@dataclass
class Recorded:
    """Records with at most one entry."""

    recorded: EntryState | None = None
    begun: list[tuple[str, float, int]] = field(default_factory=list)

    def entry_state(self, entry: str) -> EntryState | None:
        return self.recorded

    def record_start(self, entry: str, last_run_at: float, count: int) -> None:
        self.begun.append((entry, last_run_at, count))


def recorded(minutes: float, count: int = 5) -> Any:
    due = at(minutes).timestamp()
    return Recorded(EntryState(due=due, ran_at=due + 1, count=count))


def entry(last_run_at: datetime, count: int = 0, **more: Any) -> Any:
    facts = {"schedule": schedule(60), **more}
    return SimpleNamespace(name="e", last_run_at=last_run_at, total_run_count=count, **facts)


def test_a_later_record_goes_before_what_the_scheduler_remembers() -> None:
    one = entry(at(0), 2)
    catch_up(one, recorded(10), invented_since=None)
    assert (one.last_run_at, one.total_run_count) == (at(10), 5)


def test_an_earlier_record_does_not() -> None:
    one = entry(at(10), 2)
    catch_up(one, recorded(0), invented_since=None)
    assert (one.last_run_at, one.total_run_count) == (at(10), 2)


def test_it_does_where_the_scheduler_has_made_its_last_run_up() -> None:
    one = entry(at(10), 0)
    catch_up(one, recorded(0), invented_since=at(9))
    assert (one.last_run_at, one.total_run_count) == (at(0), 5)


def test_the_larger_count_stays() -> None:
    one = entry(at(0), 9)
    catch_up(one, recorded(10), invented_since=None)
    assert one.total_run_count == 9


def test_an_entry_without_a_record_begins_one() -> None:
    records: Any = Recorded()
    catch_up(entry(at(0), 2), records, invented_since=at(0))
    assert records.begun == [("e", at(0).timestamp(), 2)]


@pytest.mark.parametrize(("count", "begin"), [(0, 0.0), (1, at(0).timestamp())])
def test_one_that_is_due_once_begins_before_that_whenever_it_was_entered_if_it_never_ran(
    count: int, begin: float
) -> None:
    records: Any = Recorded()
    clocked = SimpleNamespace(clocked_time=at(-1))
    catch_up(entry(at(0), count, schedule=clocked), records, invented_since=None)
    assert records.begun == [("e", begin, count)]


def test_a_last_run_without_a_zone_stays_so() -> None:
    one = entry(at(0).replace(tzinfo=None))
    catch_up(one, recorded(10), invented_since=None)
    assert one.last_run_at == at(10).replace(tzinfo=None)


def test_a_last_run_keeps_its_zone() -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    one = entry(at(0).astimezone(zone))
    catch_up(one, recorded(10), invented_since=None)
    assert one.last_run_at == at(10)
    assert one.last_run_at.tzinfo is zone


def test_the_model_behind_an_entry_goes_along() -> None:
    model = SimpleNamespace(last_run_at=at(0), total_run_count=0, one_off=False)
    one = entry(at(0), model=model)
    catch_up(one, recorded(10), invented_since=None)
    assert (model.last_run_at, model.total_run_count) == (at(10), 5)


def test_an_entry_that_is_to_run_once_more_is_not_taken_for_one_that_has_run() -> None:
    model = SimpleNamespace(last_run_at=at(10), total_run_count=0, one_off=True)
    one = entry(at(10), model=model)
    catch_up(one, recorded(0, 1), invented_since=at(9))
    assert one.total_run_count == model.total_run_count == 0


def test_an_entry_that_returned_to_run_once_more_is_not_taken_for_one_that_has_run() -> None:
    # With a start time its last run is years ago.
    model = SimpleNamespace(last_run_at=at(0), total_run_count=0, one_off=True)
    one = entry(at(0), model=model)
    state = recorded(10, 1)
    state.recorded = state.recorded.scheduled(at(20).timestamp())
    catch_up(one, state, invented_since=None)
    assert one.total_run_count == model.total_run_count == 0


@pytest.mark.parametrize(
    ("found", "before", "due", "count"),
    [
        (schedule(60), 0, 1, 0),
        (schedule(60), 0, 2, 1),
        (schedule(60), 0.5, 2, 1),
        (schedule(60), 0, 601, 600),
        (GridSchedule(schedule(60)), 0, 601, 600),
        (schedule(1), 0, 601, MAX_MISSED_COUNT),
        (crontab(minute="*/5"), 0, 5, 0),
        (crontab(minute="*/5"), 0, 30, 5),
        (crontab(minute="*"), 0, 2000, MAX_MISSED_COUNT),
        (schedule(60), 2, 1, 0),
        (crontab(minute="*"), 2, 1, 0),
    ],
)
def test_the_ticks_between_two_are_counted(
    found: Any, before: float, due: float, count: int
) -> None:
    assert missed_count(found, to_us(at(before)), to_us(at(due))) == count


def test_a_tick_is_always_sent_as_the_same_task() -> None:
    tick = Tick(entry="e", due=100.0, schedule="beat:shop", token=7)
    later = Tick(entry="e", due=100.0, schedule="beat:shop", token=8)
    assert task_id_for("redlock:", tick) == task_id_for("redlock:", later)
    others = [
        task_id_for("other:", tick),
        task_id_for("redlock:", Tick(entry="f", due=100.0, schedule="beat:shop")),
        task_id_for("redlock:", Tick(entry="e", due=101.0, schedule="beat:shop")),
        task_id_for("redlock:", Tick(entry="e", due=100.0, schedule="beat:other")),
    ]
    assert len({task_id_for("redlock:", tick), *others}) == 5
