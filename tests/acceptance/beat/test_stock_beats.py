"""What several beats do without any protection: the checks must see it."""

from __future__ import annotations

import pytest

from tests.acceptance.beat.checker import check_dated, check_once
from tests.acceptance.beat.conftest import StartBeat
from tests.acceptance.beat.history import date_by_sending
from tests.acceptance.beat.scenes import end_all, entry, settled
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.full

SENT_BY_EACH = 5


def test_three_stock_beats_run_ticks_of_an_unprotected_task_three_times(
    worker: Worker, key: str, journal: Journal, start_beat: StartBeat
) -> None:
    beats = [start_beat(worker, entry("beat.plain", key, "job")) for _ in range(3)]

    for beat in beats:
        beat.wait_until_started()
        wait_until(
            lambda name=beat.name: (
                len([note for note in journal.of("sent") if note["beat"] == name]) >= SENT_BY_EACH
            )
        )
    end_all(*beats)

    history = settled(worker, journal)
    assert len(list(check_dated(history.runs))) == len(history.runs)
    twice = list(check_once(date_by_sending(history, 1.0).runs))
    # All three have run for this long, and of each second only one body is not one too many.
    assert len(twice) >= SENT_BY_EACH - 2
    assert max(len(violation.shown_by) for violation in twice) >= 3
