"""The schedule file of a `PersistentScheduler`, which beats without this package read too."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from celery.beat import PersistentScheduler
from celery.schedules import crontab, schedule

from tests.unit.tasks.ticks.simulated import START, SimulatedBeat, at

SCHEDULE = {
    "interval": {"task": "job", "schedule": 7},
    "relative": {"task": "job", "schedule": schedule(3600, relative=True)},
    "crontab": {"task": "job", "schedule": crontab()},
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "celerybeat-schedule")


def beat(path: str, start: Any = START, **options: Any) -> SimulatedBeat:
    return SimulatedBeat(
        start,
        conf={"beat_schedule": SCHEDULE},
        scheduler_class=PersistentScheduler,
        scheduler_options={"schedule_filename": path},
        **options,
    )


def test_a_stock_beat_goes_on_with_the_file_of_a_stamping_one(path: str) -> None:
    one = beat(path)
    last = one.run(130)[-1].at
    one.scheduler.close()
    stock = beat(path, last, with_ticks=False)
    first = next(sent for sent in stock.run(10))
    assert (first.header, first.at > last) == (None, True)


def test_a_stamping_beat_goes_on_with_the_file_of_a_stock_one(path: str) -> None:
    stock = beat(path, with_ticks=False)
    stock.run(100)
    stock.scheduler.close()
    one = beat(path, at("2026-03-10T12:05:00.5"))
    caught_up = {sent.tick.entry: str(sent.tick.due_at)[11:19] for sent in one.run(0.4)}
    assert caught_up == {"interval": "12:04:56", "crontab": "12:05:00"}


def test_entries_stay_on_their_grid_after_the_file_was_written(path: str) -> None:
    one = beat(path, start=at("2026-03-10T12:00:00.123456"))
    sent = [message for message in one.run(60) if message.tick.entry == "interval"]
    one.scheduler.sync()
    sent += [message for message in one.run(60) if message.tick.entry == "interval"]
    assert [sent.tick.due % 7 for sent in sent] == [0] * len(sent)
    assert len(sent) in (17, 18)


def test_a_beat_that_starts_again_repeats_nothing_and_leaves_nothing_out(path: str) -> None:
    ticks: list[Any] = []
    start = START
    for _ in range(5):
        one = beat(path, start)
        ticks += [sent.tick.due_us for sent in one.run(10) if sent.tick.entry == "interval"]
        one.scheduler.close()
        start = one.clock.moment
    assert {later - due for due, later in pairwise(ticks)} == {7_000_000}
    assert len(ticks) >= 7
