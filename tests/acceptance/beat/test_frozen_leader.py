"""A leader to whom something happens in the middle of sending a message."""

from __future__ import annotations

import pytest
import redis

from celery_redlock.testing import LocalCluster
from tests.acceptance.beat.beats import LEADER, REDLOCK, TASKS
from tests.acceptance.beat.checker import check_once, check_reigns, check_succession
from tests.acceptance.beat.conftest import StartBeat
from tests.acceptance.beat.history import wall
from tests.acceptance.beat.scenes import Watch, assert_none, end_all, entry, settled
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import wait_until

TTL = 3.0


def test_the_message_of_a_woken_leader_is_dropped_and_the_record_stays(
    worker: Worker, key: str, journal: Journal, start_beat: StartBeat, cluster: LocalCluster
) -> None:
    beats = [
        start_beat(
            worker,
            entry("beat.tick", key, "job"),
            scheduler=REDLOCK,
            conf={"redlock_beat_ttl": TTL},
            include=(TASKS, LEADER),
        )
        for _ in range(2)
    ]
    watch = Watch(journal, beats)
    watch.wait_until_sent(2)
    old, old_token = watch.leader
    old.close_gate("before")
    held_up = journal.wait_for("held up")
    sent_by_old = sum(note["beat"] == old.name for note in watch.sent)

    old.freeze()
    new = watch.wait_for_leader_after(old_token)
    watch.wait_until_sent(2, by=new)
    new_token = watch.leader[1]
    old.open_gate("before")
    old.thaw()

    (late,) = wait_until(
        lambda: [note for note in watch.sent if note["beat"] == old.name][sent_by_old:],
        message=lambda: f"the message of {old.name}",
    )
    assert late["token"] == old_token
    assert 0 <= wall(held_up["at"]) - late["due"] < 2
    wait_until(
        lambda: {"tick_superseded"} <= {note["kind"] for note in news_of(journal, late["id"])}
    )
    watch.wait_until_sent(2, by=new)
    # A quorum has it when a tick is sent; the others follow.
    wait_until(
        lambda: all(
            writers(record(cluster.client(node), key)) == {str(new_token)}
            for node in range(len(cluster))
        ),
        message=lambda: f"{[record(cluster.client(n), key) for n in range(len(cluster))]}",
    )

    # The woken one stands by again, and is as good as any other.
    new.end()
    assert watch.wait_for_leader_after(new_token) is old
    end_all(old)
    history = settled(worker, journal)
    assert late["due"] not in {run.due for run in history.runs}
    assert_none(check_once(history.runs))
    assert_none(check_reigns(history))
    assert_none(check_succession(history.runs))
    assert sum(note["token"] == old_token for note in watch.sent) == sent_by_old + 1


@pytest.mark.full
def test_a_tick_whose_sending_a_killed_leader_could_not_record_is_sent_again_and_runs_once(
    worker: Worker, key: str, journal: Journal, start_beat: StartBeat
) -> None:
    # Due so seldom that the next leader is there before the tick is history.
    schedule = entry("beat.tick", key, "job", 4 * TTL)
    conf = {"redlock_beat_ttl": TTL}
    beats = [
        start_beat(worker, schedule, scheduler=REDLOCK, conf=conf, include=(TASKS, LEADER))
        for _ in range(2)
    ]
    for beat in beats:
        beat.close_gate("after")  # before any of them can have begun to send
    watch = Watch(journal, beats)
    old, new = (
        beats
        if journal.wait_for("beat_leader_started")["beat"] == beats[0].name
        else reversed(beats)
    )
    journal.wait_for("held up")

    old.kill()
    new.open_gate("after")
    watch.wait_until_each_has_sent(new)
    new.end()

    history = settled(worker, journal)
    first, second = history.sent
    assert (first.beat, second.beat) == (old.name, new.name)
    assert (first.id, first.due) == (second.id, second.due)
    assert first.token < second.token
    assert [run.due for run in history.runs] == [first.due]
    assert history.news[first.id][-1] == "redelivery_ignored"


def news_of(journal: Journal, task_id: str) -> list[dict[str, object]]:
    return [note for note in journal.of("news") if note["id"] == task_id]


def writers(recorded: dict[str, str]) -> set[str]:
    """Return the tokens in a record: the one that it promises, and those of its entries."""
    return {text.split()[0] for text in recorded.values()}


def record(node: redis.Redis, key: str) -> dict[str, str]:
    """Return what a node has of the schedule's record, read without the package under test."""
    found = node.hgetall(f"redlock-meta:register:redlock:beat:{key}")
    return {name.decode(): value.decode() for name, value in found.items()}
