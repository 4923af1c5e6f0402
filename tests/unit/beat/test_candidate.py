"""Standing by: how often, and what is said."""

from __future__ import annotations

import logging

import pytest

from celery_redlock import Redlock
from celery_redlock.beat.candidate import Candidate
from celery_redlock.beat.leader_lease import Timings
from celery_redlock.core import client_of
from tests.unit.beat.world import World

TIMINGS = Timings(ttl=12.0, renew_deadline=8.0, retry=2.0)


@pytest.fixture
def redlock(world: World) -> Redlock:
    return Redlock([node.name for node in world.nodes])


def candidate(redlock: Redlock) -> Candidate:
    return Candidate(client_of(redlock), "schedule", TIMINGS)


def test_the_first_attempt_is_made_at_once(redlock: Redlock) -> None:
    lease = candidate(redlock).attempt()
    assert lease is not None
    assert lease.ttl == 12.0


def test_between_two_attempts_the_nodes_are_left_alone(world: World, redlock: Redlock) -> None:
    redlock.acquire("schedule", ttl=12.0)
    one = candidate(redlock)
    assert one.attempt() is None
    world.pause_nodes()
    before = world.now
    assert one.attempt() is None
    assert world.now == before


def test_attempts_come_once_in_a_retry_period_and_are_scattered(
    world: World, redlock: Redlock
) -> None:
    lease = redlock.acquire("schedule", ttl=12.0)
    one = candidate(redlock)
    pauses = []
    for _ in range(50):
        assert one.attempt() is None
        pauses.append(one.pause)
        world.time.sleep(one.pause)
        lease.extend()
    assert max(pauses) <= 2.0
    assert min(pauses) >= 1.0
    assert max(pauses) - min(pauses) > 0.3


def test_there_is_one_right_when_the_leaders_lease_ends(world: World, redlock: Redlock) -> None:
    redlock.acquire("schedule", ttl=12.0)
    world.time.sleep(11.9)
    one = candidate(redlock)
    assert one.attempt() is None
    assert 0.0999 <= one.pause <= 0.151
    world.time.sleep(one.pause + 0.001)  # nodes count whole milliseconds, and the last one is held
    assert one.attempt() is not None


def test_behind_whom_it_stands_is_said_once_for_each_leader(world: World, redlock: Redlock) -> None:
    world.log.set_level(logging.INFO)
    leader, one = candidate(redlock), candidate(redlock)
    for times in (1, 2):
        lease = leader.attempt()
        assert lease is not None
        for _ in range(3):
            assert one.attempt() is None
            world.time.sleep(2.0)
        assert len(world.logged("Beat waits to lead schedule 'schedule': the beat on ")) == times
        lease.release()


def test_a_stranger_who_has_the_lock_is_shown_as_such(
    redlock: Redlock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    lease = redlock.acquire("schedule", label="somebody")
    candidate(redlock).attempt()
    assert f"a holder that is not a beat ({lease.owner!r}) leads" in caplog.text


def test_holding_back_means_no_attempt(world: World, redlock: Redlock) -> None:
    one = candidate(redlock)
    one.back_off(6.0, has_led=True)
    assert one.attempt() is None
    assert one.pause == 2.0
    world.time.sleep(6.0)
    assert one.attempt() is not None


def test_a_lease_that_nobody_answers_for_is_given_back(redlock: Redlock) -> None:
    one = candidate(redlock)
    assert one.attempt() is not None
    one.abandon()
    assert candidate(redlock).attempt() is not None


def test_a_lease_that_somebody_answers_for_is_not(redlock: Redlock) -> None:
    one = candidate(redlock)
    assert one.attempt() is not None
    one.accept()
    one.abandon()
    assert candidate(redlock).attempt() is None


def test_only_its_own_attempt_is_undone(redlock: Redlock) -> None:
    other, one = candidate(redlock), candidate(redlock)
    assert other.attempt() is not None
    one._attempting = True
    one.abandon()
    assert one.attempt() is None


def test_undoing_without_nodes_does_not_raise(world: World, redlock: Redlock) -> None:
    one = candidate(redlock)
    assert one.attempt() is not None
    for node in world.nodes:
        node.kill()
    one.abandon()
    assert world.logged("The lock 'schedule' may stay held until its lease expires")
