"""Several ordinary beats that know nothing of each other: on arrival each tick counts once."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.acceptance.beat.beats import Beat
from tests.acceptance.beat.checker import (
    check_arrival,
    check_dated,
    check_gaps,
    check_grid,
    check_once,
    find_gaps,
)
from tests.acceptance.beat.conftest import StartBeat
from tests.acceptance.beat.history import since_due
from tests.acceptance.beat.scenes import Watch, assert_none, end_all, entry, settled
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT

EVERY = 1.0
MINUTE = 60.0


def test_three_beats_that_start_when_they_like_run_each_tick_once(
    worker: Worker, key: str, journal: Journal, start_beat: StartBeat
) -> None:
    watch = Watch(journal, [])
    beats: list[Beat] = []
    for _ in range(3):
        beats.append(watch.add(start_beat(worker, entry("beat.tick", key, "job", EVERY))))
        watch.wait_until_sent(2, by=beats[-1])
    watch.wait_until_sent(6)
    beats[1].kill()
    watch.wait_until_sent(8)
    end_all(*beats)

    history = settled(worker, journal)
    assert_none(check_dated(history.runs))
    assert_none(check_grid(history.runs, EVERY))
    assert_none(check_once(history.runs))
    assert_none(check_arrival(history))
    assert_none(
        check_gaps(
            find_gaps(history.runs, EVERY),
            EVERY,
            lost=lambda gap, _: min(
                beat.pulse.lost(since_due(gap.before), gap.after.began) for beat in beats
            ),
        )
    )
    assert {message.beat for message in history.sent} == {beat.name for beat in beats}
    assert len(history.sent) > len(history.runs)


@pytest.mark.full
@pytest.mark.timeout(8 * TIMEOUT)
def test_a_crontab_tick_runs_once_though_a_beat_catches_it_up_later(
    worker: Worker, key: str, journal: Journal, start_beat: StartBeat
) -> None:
    # All beats agree on the time, though not with us, so that a minute begins soon after the start.
    skew = 45.0 - datetime.now(UTC).second
    schedule = entry("beat.tick", key, "job", ["crontab", {"minute": "*"}])
    beats = [start_beat(worker, schedule, skew=skew) for _ in range(3)]
    late = beats[2]
    # Said when its schedule file is complete.
    late.wait_for_log("Ticks of these entries are identified")
    late.kill()
    watch = Watch(journal, beats)
    watch.wait_until_each_has_sent(*beats[:2], timeout=MINUTE + TIMEOUT)

    again = watch.add(start_beat(worker, schedule, skew=skew, schedule_file=late.schedule_file))
    watch.wait_until_each_has_sent(again, timeout=MINUTE + TIMEOUT)
    end_all(*beats, again)

    history = settled(worker, journal)
    assert_none(check_dated(history.runs))
    assert_none(check_once(history.runs))
    assert_none(check_arrival(history))
    assert_none(check_grid(history.runs, MINUTE))
