"""No lock node answers for ten seconds: beats wait quietly, and go on by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redlock.testing import LocalCluster
from tests.acceptance.apps.visible import instant
from tests.acceptance.beat.beats import LEADER, REDLOCK, TASKS
from tests.acceptance.beat.checker import (
    check_arrival,
    check_dated,
    check_once,
    check_reigns,
    check_succession,
)
from tests.acceptance.beat.conftest import StartBeat
from tests.acceptance.beat.scenes import Watch, assert_none, end_all, entry, settled
from tests.acceptance.conftest import StartWorker
from tests.acceptance.scene import Journal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.duration

OUTAGE = 10.0
TTL = 4.0
# So long a restarted node sits out.
MAX_TTL = 5.0
# A beat looks for a leader's place a few times a second at most. A busy loop wants all of the time.
IDLE = 0.5
# What a beat may have to say while it waits, however long that is.
FEW_LINES = 12

NOBODY = "No beat can lead schedule"
AGAIN = "A quorum of lock nodes answers again for schedule"


@pytest.fixture
def nodes() -> Iterator[LocalCluster]:
    """Lock nodes that only one test uses, and breaks."""
    with LocalCluster(5) as nodes:
        yield nodes


def freeze(nodes: LocalCluster) -> Callable[[], None]:
    for index in range(len(nodes)):
        nodes.pause(index)

    def resume() -> None:
        for index in range(len(nodes)):
            nodes.resume(index)

    return resume


def kill(nodes: LocalCluster) -> Callable[[], None]:
    for index in range(len(nodes)):
        nodes.kill(index)

    def restart() -> None:
        for index in range(len(nodes)):
            nodes.restart(index, keep_data=False)

    return restart


@pytest.mark.parametrize("break_down", [freeze, kill])
def test_beats_outlive_all_lock_nodes(
    break_down: Callable[[LocalCluster], Callable[[], None]],
    nodes: LocalCluster,
    start_worker: StartWorker,
    key: str,
    journal: Journal,
    start_beat: StartBeat,
) -> None:
    conf: dict[str, Any] = {
        "redlock_nodes": list(nodes.urls),
        "redlock_max_ttl": MAX_TTL,
        "redlock_ttl": TTL,
    }
    worker = start_worker(conf=conf).wait_until_ready()
    schedule = entry("beat.tick", key, "job")
    beats = [
        start_beat(worker, schedule, scheduler=REDLOCK, conf=conf, include=(TASKS, LEADER))
        for _ in range(2)
    ]
    watch = Watch(journal, beats)
    watch.wait_until_sent(3)
    (leader, token), before = watch.leader, {beat: beat.usage for beat in beats}
    standby = next(beat for beat in beats if beat is not leader)
    standby.wait_for_log("Beat waits to lead")
    lines = {beat: len(beat.log.splitlines()) for beat in beats}

    mend = break_down(nodes)
    begun = instant()
    wait_until(lambda: instant() - begun >= OUTAGE)
    for beat in beats:
        usage = beat.usage - before[beat]
        print(f"{beat.name} ran {usage.cpu:.2f} s and waited {usage.queued:.2f} s to do so")
        assert beat.is_running, beat.log_tail
        assert NOBODY in beat.log
        assert len(beat.log.splitlines()) - lines[beat] <= FEW_LINES
        assert usage.wanted <= IDLE * (instant() - begun)
    sent_meanwhile = len([note for note in watch.sent if note["at"] > begun + TTL])
    assert sent_meanwhile == 0
    mend()

    watch.wait_for_leader_after(token)
    watch.wait_until_sent(3)
    wait_until(lambda: all(AGAIN in beat.log for beat in beats))
    end_all(*beats)
    history = settled(worker, journal)
    assert_none(check_dated(history.runs))
    assert_none(check_once(history.runs))
    assert_none(check_reigns(history))
    assert_none(check_succession(history.runs))
    assert_none(check_arrival(history, excused=["tick_superseded"]))
