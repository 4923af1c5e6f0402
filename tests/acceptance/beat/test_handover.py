"""A leader that is ended cleanly gives its place away at once; who stands by touches no file."""

from __future__ import annotations

import pytest

from tests.acceptance.beat.beats import LEADER, PLAIN, REDLOCK, TASKS, Beat
from tests.acceptance.beat.checker import check_gaps, check_once, check_repeats, find_gaps
from tests.acceptance.beat.conftest import StartBeat
from tests.acceptance.beat.scenes import Watch, assert_none, end_all, entry, settled
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker

# So long that nobody could take a handover for the end of the lease.
TTL = 20.0
RETRY = 2.0
# Both processes have other things to do, on a machine that has, too.
SLACK = 2.0


@pytest.mark.duration
def test_a_clean_end_hands_over_within_one_retry_period_and_only_leaders_open_schedule_files(
    worker: Worker, key: str, journal: Journal, start_beat: StartBeat
) -> None:
    def start() -> Beat:
        return start_beat(
            worker,
            entry("beat.tick", key, "job", 4.0),
            scheduler=REDLOCK,
            conf={"redlock_beat_ttl": TTL, "redlock_beat_scheduler": PLAIN},
            include=(TASKS, LEADER),
        )

    first = start()
    led = journal.wait_for("beat_leader_started")
    second = start()
    second.wait_for_log("Beat waits to lead")
    watch = Watch(journal, [first, second])
    watch.wait_until_each_has_sent(first)
    assert first.has_schedule_file
    assert not second.has_schedule_file

    first.end()

    stopped = journal.wait_for("beat_leader_stopped")
    started = journal.wait_for("beat_leader_started", 2)
    assert (led["beat"], stopped["beat"], started["beat"]) == (first.name, first.name, second.name)
    took = started["at"] - stopped["at"]
    assert took - second.pulse.lost(stopped["at"], started["at"]) <= RETRY + SLACK
    assert took < TTL / 2
    watch.wait_until_each_has_sent(second)
    assert second.has_schedule_file
    end_all(second)
    history = settled(worker, journal)
    assert_none(check_once(history.runs))
    assert_none(check_repeats(history))
    # Handed over faster than the interval: nobody who looks at the ticks can tell.
    assert_none(check_gaps(find_gaps(history.runs, 4.0), 4.0))
