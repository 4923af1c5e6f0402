"""Who sends, when a leader stops, crashes, freezes or loses its lock nodes."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery.schedules import crontab

from celery_redlock.core import Register
from celery_redlock.tasks.config.client import client_for
from tests.unit.beat.world import MakeWorld, Message, World


def told(messages: list[Message]) -> list[tuple[str, str]]:
    return [message.told for message in messages]


def due_times(messages: list[Message]) -> list[int]:
    return [message.tick.due_us // 1_000_000 for message in messages if message.tick]


def test_one_of_three_beats_sends_every_tick(world: World) -> None:
    for name in "abc":
        world.beat(name)
    sent = world.run(30)
    assert {message.beat for message in sent} == {"a"}
    assert told(sent)[:2] == [("a", "12:00:01"), ("a", "12:00:02")]
    assert len(sent) == 30


def test_a_leader_that_is_stopped_is_followed_within_a_retry_period(world: World) -> None:
    a, _ = world.beat("a"), world.beat("b")
    world.run(10)
    world.stop(a)
    stopped_at = world.now
    sent = world.run(10)
    assert sent[0].beat == "b"
    assert sent[0].at - stopped_at <= 2.0
    assert len(set(due_times(world.sent))) == len(world.sent)


def test_a_leader_that_crashes_is_followed_within_its_lease(world: World) -> None:
    a, _ = world.beat("a"), world.beat("b")
    world.run(10)
    world.crash(a)
    crashed_at = world.now
    sent = world.run(20)
    assert {message.beat for message in sent} == {"b"}
    assert 4.0 < sent[0].at - crashed_at <= 12.1
    assert len(set(due_times(world.sent))) == len(world.sent)


def test_ticks_that_nobody_could_send_collapse_into_one_and_are_counted(world: World) -> None:
    a, _ = world.beat("a"), world.beat("b")
    world.run(10)
    world.crash(a)
    first, second, *_ = world.run(20)
    last = due_times(world.sent)[9]
    assert due_times([first])[0] == int(first.at)
    assert due_times([second])[0] == due_times([first])[0] + 1
    missing = due_times([first])[0] - last - 1
    assert world.logged(f"Entry 'job' has no record of being sent for {missing} of its due times")


def test_a_leader_that_was_frozen_sends_and_writes_nothing_when_it_wakes(world: World) -> None:
    a, b = world.beat("a"), world.beat("b")
    world.run(10)
    a.frozen = True
    world.run(20)
    assert b.leads
    before = world.recorded()["job"]
    a.frozen = False
    sent = world.run(5)
    assert {message.beat for message in sent} == {"b"}
    assert world.recorded()["job"].count == before.count + len(sent)


def test_the_next_leader_knows_of_a_tick_that_was_sent_right_before_the_stop(world: World) -> None:
    a = world.beat("a")
    world.run(9.6)
    world.stop(a)
    b = world.beat("b")
    world.run(0.3)
    assert b.leads
    assert {message.beat for message in world.sent} == {"a"}


def test_a_tick_that_was_sent_and_not_recorded_is_sent_again_as_the_same_task(world: World) -> None:
    a = world.beat("a")
    world.run(5)
    world.pause_nodes(3)
    world.run(1)  # sent, and recorded by no quorum
    world.crash(a)
    for node in world.nodes[:3]:
        node.kill()  # what was in the buffers is gone
        node.restart(keep_data=True)
    for node in world.nodes:
        node.state.identity = world.nodes[0].state.identity
        node.state.arm()
    last = world.sent[-1]
    world.time.sleep(12)
    # The clock is set back to where it was, so that the very same tick is the latest.
    world.skew["b"] = last.at - world.now
    world.beat("b")
    again = world.run(0.5)[0]
    assert again.tick is not None
    assert last.tick is not None
    assert (again.tick.entry, again.tick.due_us) == (last.tick.entry, last.tick.due_us)
    assert again.id == last.id
    assert again.tick.token != last.tick.token


def test_messages_carry_the_schedule_and_the_leaders_token(world: World) -> None:
    a, _ = world.beat("a"), world.beat("b")
    world.run(3)
    world.stop(a)
    world.run(5)
    tokens = [message.tick.token for message in world.sent if message.tick]
    assert {message.tick.schedule for message in world.sent if message.tick} == {
        f"beat:{world.name}"
    }
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == 2


@pytest.mark.parametrize(
    ("found", "before", "due"),
    [(3600.0, 3595, "13:00:00"), (crontab(minute="*/5"), 295, "12:05:00")],
    ids=["interval", "crontab"],
)
def test_an_entry_that_has_never_run_does_not_lose_its_first_tick_to_a_failover(
    make_world: MakeWorld, found: Any, before: int, due: str
) -> None:
    world = make_world(schedule={"job": {"task": "job", "schedule": found}})
    a = world.beat("a")
    world.run(before)
    world.crash(a)
    world.beat("b")
    assert told(world.run(60)) == [("b", due)]


def test_with_all_lock_nodes_down_nobody_crashes_or_hurries(world: World) -> None:
    a, b = world.beat("a"), world.beat("b")
    world.run(10)
    world.pause_nodes()
    a.passes = b.passes = 0
    sent = world.run(40)
    assert all(message.at < sent[0].at + 8.0 for message in sent)
    assert a.passes < 200
    assert b.passes < 60
    world.resume_nodes()
    assert world.run(20)[-1].at > world.now - 1.1
    assert len(set(due_times(world.sent))) == len(world.sent)
    for line in ("No beat can lead schedule", "A quorum of lock nodes answers again"):
        told_by = [record for record in world.log.records if line in record.getMessage()]
        assert len(told_by) == 2, line  # one of each beat
        assert {record.levelno for record in told_by} == {logging.WARNING}


def test_a_pass_ends_within_the_retry_period_and_asks_for_the_next_within_it(world: World) -> None:
    a, b = world.beat("a"), world.beat("b")
    world.run(10)
    world.pause_nodes()
    world.run(40)
    for beat in (a, b):
        assert beat.longest_pass <= 2.0
        assert beat.longest_delay <= 2.0


def test_a_leader_sends_nothing_once_it_was_not_extended_within_the_deadline(world: World) -> None:
    a = world.beat("a")
    world.run(4.1)  # renewed a moment ago
    silent_since = world.now
    world.pause_nodes()
    sent = world.run(11)
    assert a.leads
    assert sent[-1].at <= silent_since + 8.0
    assert world.logged("the leader sends nothing until it is")
    world.resume_nodes()
    world.run(5)
    assert world.logged("is extended again")


def test_a_beat_that_is_superseded_campaigns_again_after_pauses_that_grow(world: World) -> None:
    one = world.beat("one")
    Register(client_for(one.app), f"beat:{world.name}").claim(2**52)
    world.run(30)
    # After 2, 4 and 8 seconds, then in a lease of 12.
    assert len(world.logged("another beat leads")) == 5
