"""Of a key with a rate so many slots are granted in a period, wherever it begins."""

from __future__ import annotations

import time

import pytest

from celery_redlock import LockContended, Rate
from celery_redlock.core.limits import rate_key
from celery_redlock.protocol import Granted, NotHeld, Refused, Vote, Waiter, acquire
from celery_redlock.protocol.commands import move
from celery_redlock.protocol.keys import LimitedKey
from tests.support.nodes import CALM, PREFIX, Nodes
from tests.support.waiting import TIMEOUT, wait_until

LONG = 60_000
HOUR = Rate("key", "2/h")


def turn(vote: Vote) -> float:
    """Return in how many seconds it is the turn of one that was refused."""
    assert isinstance(vote, Refused)
    return vote.turn_in


def ask(nodes: Nodes, key: LimitedKey, name: str, keep_ms: int = LONG) -> Vote:
    """Let a waiter try to acquire a slot on the first node."""
    return nodes.run(0, acquire((key,), name, LONG, 0, 0, "", Waiter(name, 1, keep_ms)))


def kept(slots: int, period_ms: int) -> LimitedKey:
    """Return a key of so many slots, each kept for a time."""
    return LimitedKey("key", slots, period_ms).on_nodes(PREFIX + "key")


def test_so_many_get_it_in_a_period(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    for _ in range(2):
        assert client.acquire(HOUR, wait=CALM).is_valid
    with pytest.raises(LockContended):
        client.acquire(HOUR)


def test_one_more_is_refused_with_the_time_at_which_a_slot_is_free(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    for _ in range(2):
        client.acquire(HOUR, wait=CALM)
    with pytest.raises(LockContended, match="'key' was got 2 times within its period") as refused:
        client.acquire(HOUR)
    assert refused.value.expires_in is not None
    assert 3600 < refused.value.expires_in <= 3672


def test_a_holder_does_not_give_its_slot_back(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    for _ in range(2):
        assert client.acquire(HOUR, wait=CALM).release()
    with pytest.raises(LockContended):
        client.acquire(HOUR)


def test_an_attempt_that_gets_no_lease_gives_its_slots_back(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    any_nodes.hold("other", "them", range(5))
    with pytest.raises(LockContended):
        client.acquire([HOUR, "other"])
    for _ in range(2):
        assert client.acquire(HOUR, wait=CALM).is_valid


def test_an_extension_does_not_keep_the_slot_longer(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    lease = client.acquire(Rate("key", "1/s"), wait=CALM)
    lease.extend(60.0)
    assert client.acquire(Rate("key", "1/s"), wait=TIMEOUT).is_valid


def test_the_next_one_gets_it_a_period_after_the_first(nodes: Nodes) -> None:
    client = nodes.connected()
    began = time.monotonic()
    for _ in range(3):
        client.acquire(Rate("key", "2/s"), wait=TIMEOUT)
    assert time.monotonic() - began > 1.0


def test_waiters_have_turns_of_their_own(any_nodes: Nodes) -> None:
    key = kept(2, LONG)
    for name in ("one", "two"):
        assert isinstance(ask(any_nodes, key, name), Granted)
    turns = [turn(ask(any_nodes, key, f"w{number}")) for number in range(4)]
    assert max(turns[:2]) <= 60
    # Less the time between their questions.
    assert [turns[2] - turns[0], turns[3] - turns[1]] == pytest.approx([60, 60], abs=20)


def test_a_waiter_keeps_its_turn_when_it_asks_again(any_nodes: Nodes) -> None:
    key = kept(1, LONG)
    ask(any_nodes, key, "holder")
    first, second = (turn(ask(any_nodes, key, name)) for name in ("w1", "w2"))
    assert turn(ask(any_nodes, key, "w1")) <= first
    assert turn(ask(any_nodes, key, "w2")) <= second


def test_one_that_waits_no_longer_has_no_turn(any_nodes: Nodes) -> None:
    key = kept(1, LONG)
    ask(any_nodes, key, "holder")
    first = turn(ask(any_nodes, key, "w1"))
    ask(any_nodes, key, "w1", keep_ms=0)
    assert turn(ask(any_nodes, key, "w2")) <= first


def test_a_free_slot_is_kept_for_no_one_whose_turn_it_is(any_nodes: Nodes) -> None:
    key = kept(1, 300)
    ask(any_nodes, key, "holder")
    ask(any_nodes, key, "w1")
    wait_until(lambda: any_nodes.owner(0, f"{key}0") is None)
    assert isinstance(any_nodes.run(0, acquire((key,), "newcomer", LONG, 0, 0)), Granted)


def test_one_that_does_not_come_to_its_turn_is_forgotten(any_nodes: Nodes) -> None:
    key = kept(1, 50)

    def is_refused() -> bool:
        ask(any_nodes, key, "holder")  # again, if the slot was free before the other one asked
        return isinstance(ask(any_nodes, key, "gone"), Refused)

    wait_until(is_refused)
    late = acquire((key,), "late", LONG, 0, 0, "", Waiter("late", 1, 60_000))

    def is_first() -> bool:
        any_nodes.run(0, late)
        return any_nodes.waiting(0, key) == ["late"]

    wait_until(is_first)


def test_a_rate_that_nodes_have_lost_in_part_is_granted_again_by_no_minority(nodes: Nodes) -> None:
    client = nodes.connected()
    once = Rate("key", "1/h")
    lease = client.acquire(once, wait=CALM)
    slot = f"{client.node_key(once)}0"
    wait_until(lambda: nodes.owners(slot) == [lease.owner] * 5)
    for node in (0, 1):
        nodes.forget(node, slot)
    with pytest.raises(LockContended):
        client.acquire(once)


def test_calls_that_wait_for_a_rate_get_it_one_after_the_other(nodes: Nodes) -> None:
    clients = [nodes.connected() for _ in range(3)]
    began = time.monotonic()
    for client in clients:
        client.acquire(Rate("key", "1/s"), wait=TIMEOUT)
    assert time.monotonic() - began > 2.0


def test_a_release_sets_the_slot_where_it_is_missing_for_the_rest_of_the_period(
    any_nodes: Nodes,
) -> None:
    client = any_nodes.connected()
    key = rate_key("key", "1/h", "rate")
    lease = client.acquire(Rate("key", "1/h"), wait=CALM)
    place = f"{client.node_key(key)}0"
    wait_until(lambda: any_nodes.owners(place) == [lease.owner] * 5)
    any_nodes.forget(0, place)
    lease.release()
    wait_until(lambda: any_nodes.owner(0, place) == lease.owner)


def test_a_second_round_that_finds_the_slot_taken_names_when_it_is_free(any_nodes: Nodes) -> None:
    key = kept(2, LONG)
    any_nodes.put(0, f"{key}1", "them")
    refused = any_nodes.run(0, move((key,), "us", 7, (1,), LONG, 0))
    assert isinstance(refused, NotHeld)
    assert refused.turn_in > 0
