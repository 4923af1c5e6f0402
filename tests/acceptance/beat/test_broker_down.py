"""The broker is away for some seconds: a tick that falls due meanwhile is sent afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from celery_redlock.testing import LocalCluster
from tests.acceptance.apps.visible import instant
from tests.acceptance.beat.beats import LEADER, REDLOCK, TASKS
from tests.acceptance.beat.checker import check_dated, check_once
from tests.acceptance.beat.conftest import StartBeat
from tests.acceptance.beat.history import wall
from tests.acceptance.beat.scenes import Watch, assert_none, end_all, entry, settled
from tests.acceptance.conftest import StartWorker
from tests.acceptance.scene import Journal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.full

EVERY = 8.0
# Of the interval, how long the broker is away beyond the due time.
BEYOND = 1.5


@pytest.fixture
def broker() -> Iterator[LocalCluster]:
    with LocalCluster(1, armed=False) as broker:
        yield broker


def test_a_tick_that_falls_due_while_the_broker_is_away_is_sent_afterwards_once(
    broker: LocalCluster,
    urls: dict[str, str],
    start_worker: StartWorker,
    start_beat: StartBeat,
    key: str,
    journal: Journal,
) -> None:
    urls = {**urls, "broker": broker.urls[0]}
    worker = start_worker(urls=urls).wait_until_ready()
    schedule = entry("beat.tick", key, "job", EVERY)
    beat = start_beat(worker, schedule, scheduler=REDLOCK, urls=urls, include=(TASKS, LEADER))
    watch = Watch(journal, [beat])
    watch.wait_until_each_has_sent(beat)
    first = journal.wait_for("ended") and journal.wait_for("began")

    broker.kill(0)
    due = first["due"] + EVERY
    wait_until(lambda: time.time() >= due + BEYOND)
    assert beat.is_running, beat.log_tail
    beat.wait_for_log("cannot connect to the broker")
    back = instant()
    broker.restart(0)

    watch.wait_until_sent()
    beat.wait_for_log("connected to the broker again")
    end_all(beat)
    history = settled(worker, journal)
    assert_none(check_dated(history.runs))
    assert_none(check_once(history.runs))
    afterwards = next(message for message in history.sent if message.at > back)
    assert afterwards.due in {run.due for run in history.runs}
    # What was due last when the broker came back. Nobody but the machine may take until the next.
    lost = beat.pulse.lost(back, afterwards.at)
    assert afterwards.due == wall(back) // EVERY * EVERY or lost > EVERY / 4
    assert afterwards.due >= due
