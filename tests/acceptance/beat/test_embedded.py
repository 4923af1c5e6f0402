"""Beats inside of workers (`worker -B`), of which one leads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.beat.beats import LEADER, OVERLAP, REDLOCK, TASKS, WATCH, watched
from tests.acceptance.beat.checker import check_arrival, check_dated, check_once, check_reigns
from tests.acceptance.beat.scenes import Watch, assert_none, entry, settled
from tests.acceptance.conftest import StartWorker
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.full

# Longer than any wait in these tests: nobody leads because a lease has ended by itself.
TTL = 600.0
RETRY = 1.0


def test_a_worker_with_a_beat_inside_that_stops_hands_over_to_another_one(
    start_worker: StartWorker, key: str, journal: Journal, logs: Path, worker: Worker
) -> None:
    def start(name: str) -> Worker:
        conf: dict[str, Any] = {
            "include": [TASKS, OVERLAP, LEADER, WATCH],
            "task_default_queue": worker.name,
            "redlock_beat_key": f"beat:{key}",
            "redlock_beat_ttl": TTL,
            "redlock_beat_retry": RETRY,
            "redlock_max_ttl": TTL,
        }
        return start_worker(
            conf=conf,
            options=("--beat", f"--scheduler={REDLOCK}", f"--schedule-filename={logs / name}"),
            beat=watched(name, key, entry("beat.tick", key, "job"), logs),
        )

    names = [f"{key}-first", f"{key}-second"]
    workers = {name: start(name).wait_until_ready() for name in names}
    watch = Watch(journal, [])
    watch.wait_until_sent(3)
    leader, token = (watch.sent[-1][fact] for fact in ("beat", "token"))

    workers.pop(leader).stop()

    (heir,) = workers
    wait_until(lambda: any(note["token"] > token for note in watch.sent))
    watch.wait_until_sent(3)
    workers[heir].stop()
    assert {note["beat"] for note in watch.sent if note["token"] > token} == {heir}
    history = settled(worker, journal)
    assert_none(check_dated(history.runs))
    assert_none(check_once(history.runs))
    assert_none(check_reigns(history))
    assert_none(check_arrival(history, excused=["tick_superseded"]))
