"""Beats whose clocks are two seconds slow, right, and two seconds fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.acceptance.apps.beat_times import AT_LEAST_FOR
from tests.acceptance.beat.beats import OVERLAP, TASKS, Beat
from tests.acceptance.beat.checker import (
    check_arrival,
    check_dated,
    check_gaps,
    check_once,
    find_gaps,
)
from tests.acceptance.beat.conftest import StartBeat
from tests.acceptance.beat.history import History, Sent, wall
from tests.acceptance.beat.scenes import Watch, assert_none, end_all, entry, settled
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.duration

SKEWS = (-2.0, 0.0, 2.0)
APART = max(SKEWS) - min(SKEWS)
# The lock outlasts the last beat's message, and is free again before the first one's next.
EVERY = 2 * AT_LEAST_FOR - APART
TICKS = 2
# The first of them may just have been missed when the beats had started.
WAIT = (TICKS + 1) * EVERY + TIMEOUT


@pytest.mark.timeout(8 * TIMEOUT)
def test_skewed_beats_that_stamp_their_ticks_run_each_once(
    worker: Worker, key: str, journal: Journal, start_beat: StartBeat
) -> None:
    schedule = {
        **entry("overlap.brief", key, "brief", EVERY),
        **entry("beat.tick", key, "job", 1.0),
    }
    beats = [start_beat(worker, schedule, skew=skew, include=(TASKS, OVERLAP)) for skew in SKEWS]
    watch = Watch(journal, beats)
    watch.wait_until_each_has_sent(*beats, count=TICKS, task="overlap.brief", timeout=WAIT)
    end_all(*beats)

    history = settled(worker, journal)
    for beat, skew in zip(beats, SKEWS, strict=True):
        assert ahead(beat, history, lambda message: message.due) == pytest.approx(skew, abs=0.9)
    assert_none(check_dated(history.runs))
    assert_none(check_once(history.runs))
    assert_none(check_arrival(history))
    brief = [run for run in history.runs if run.entry.startswith("brief")]
    assert len(brief) >= TICKS
    assert_none(check_gaps(find_gaps(brief, EVERY), EVERY))


@pytest.mark.timeout(8 * TIMEOUT)
def test_skewed_beats_that_know_nothing_of_locks_run_each_tick_once_through_the_minimum_hold(
    worker: Worker, key: str, journal: Journal, start_beat: StartBeat
) -> None:
    # An interval would begin when each of them was started, whatever its clock shows.
    kind = ["aligned", {"seconds": EVERY}]
    # Celery 5.4 does not tell workers which messages are a beat's; later ones do it in this way.
    told = {"options": {"headers": {"celery_beat_task": True}}}
    schedule = entry("overlap.brief", key, "brief", kind, **told)
    # Without a setting for which the command loads the package.
    unaware: dict[str, Any] = {"include": (), "conf": {"redlock_tasks": {}}}
    beats = [start_beat(worker, schedule, skew=skew, **unaware) for skew in SKEWS]
    watch = Watch(journal, beats)
    watch.wait_until_each_has_sent(*beats, count=TICKS, timeout=WAIT)
    end_all(*beats)

    history = settled(worker, journal)
    assert {run.due for run in history.runs} == {None}
    for beat, skew in zip(beats, SKEWS, strict=True):
        assert ahead(beat, history, nearest) == pytest.approx(skew, abs=0.9)
    due = {message.id: nearest(message) for message in history.sent}
    dated = replace(history, runs=[replace(run, due=due[run.id]) for run in history.runs])
    assert_none(check_once(dated.runs))
    assert_none(check_gaps(find_gaps(dated.runs, EVERY), EVERY))
    ran = {run.id for run in history.runs}
    for message in history.sent:
        assert message.id in ran or history.news[message.id][-1] == "task_skipped"
    assert len(history.sent) - len(ran) >= TICKS


def ahead(beat: Beat, history: History, due: Callable[[Sent], float]) -> float:
    """Return how many seconds too early a beat sends, when nothing keeps it waiting."""
    return max(
        due(message) - wall(message.at) for message in history.sent if message.beat == beat.name
    )


def nearest(message: Sent) -> float:
    """Return the due time that is nearest to the sending, which was early, late, or in time."""
    return round(wall(message.at) / EVERY) * EVERY
