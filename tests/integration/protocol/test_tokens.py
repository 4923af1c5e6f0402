"""Fencing tokens of successive holders increase, whatever counters and clocks say."""

from __future__ import annotations

import pytest

from celery_redlock import LockContended, Redlock
from celery_redlock.core import client_of
from celery_redlock.protocol.timing import MAX_TOKEN
from celery_redlock.protocol.votes import Acknowledged, NotHeld
from tests.support.commands import raise_fence
from tests.support.nodes import PREFIX, Nodes
from tests.support.together import in_threads
from tests.support.waiting import TIMEOUT, wait_until

#: Far above what any clock says, so that only the counters count.
HIGH = 2**52


def test_tokens_of_successive_holders_increase(any_nodes: Nodes) -> None:
    client = any_nodes.client()
    tokens = []
    for _ in range(20):
        lease = client.acquire("key", wait=TIMEOUT)
        tokens.append(lease.fencing_token)
        lease.release()
    assert sorted(set(tokens)) == tokens


def test_tokens_increase_also_when_the_clock_stands_still(nodes: Nodes, client: Redlock) -> None:
    for node in range(5):
        nodes.set_fence(node, "key", HIGH)
    tokens = []
    for _ in range(5):
        lease = client.acquire("key", wait=TIMEOUT)
        tokens.append(lease.fencing_token)
        lease.release()
        nodes.wait_free("key")
    assert [HIGH + number for number in range(1, 6)] == tokens


def test_equal_counters_need_one_round(nodes: Nodes, client: Redlock) -> None:
    assert isinstance(nodes.attempt(client, "key").round.token, int)
    counters = {nodes.fence(node, "key") for node in range(5)}
    assert len(counters - {0}) == 1


def test_slow_path_the_largest_counter_of_the_quorum_is_brought_to_a_quorum(
    any_nodes: Nodes, client: Redlock
) -> None:
    for node in range(5):
        any_nodes.set_fence(node, "key", HIGH + 100 * (5 - node))
    lease = client.acquire("key", wait=TIMEOUT)
    counters = [any_nodes.fence(node, "key") for node in range(5)]
    assert sum(counter >= lease.fencing_token for counter in counters) >= 3
    assert HIGH + 300 < lease.fencing_token <= HIGH + 501


@pytest.mark.parametrize("high", range(5))
def test_a_single_large_counter_never_yields_a_token_twice(nodes: Nodes, high: int) -> None:
    client = nodes.connected()
    nodes.set_fence(high, "key", HIGH)
    tokens = []
    for lost in (high, (high + 1) % 5, None):
        lease = client.acquire("key", wait=TIMEOUT)
        tokens.append(lease.fencing_token)
        lease.release()
        if lost is not None:
            nodes.kill(lost)
    assert sorted(set(tokens)) == tokens


def test_the_second_round_asks_for_our_key_and_changes_nothing_without_it(any_nodes: Nodes) -> None:
    command = raise_fence((PREFIX + "key",), "us", HIGH)
    for node, (owner, vote, counter) in enumerate(
        [
            ("us", Acknowledged(), HIGH),
            ("them", NotHeld(missing=False), 7),
            (None, NotHeld(missing=False), 7),
        ]
    ):
        any_nodes.set_fence(node, "key", 7)
        if owner:
            any_nodes.put(node, "key", owner)
        assert vote == any_nodes.run(node, command)
        assert counter == any_nodes.fence(node, "key")


def test_the_second_round_lowers_no_counter_and_is_not_acknowledged_above_the_token(
    one_node: Nodes,
) -> None:
    one_node.put(0, "key", "us")
    one_node.set_fence(0, "key", HIGH)
    assert NotHeld(missing=False) == one_node.run(0, raise_fence((PREFIX + "key",), "us", 7))
    assert one_node.fence(0, "key") == HIGH


@pytest.mark.parametrize("clock", [2**53 - 1, 4_000_000_000_000_000], ids=["end", "2096"])
def test_clamp_a_clock_that_runs_ahead_does_not_poison_the_counters(
    any_nodes: Nodes, client: Redlock, clock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as ahead:
        ahead.setattr(client_of(client).transport, "wall_us", lambda: clock)
        lease = client.acquire("key", wait=TIMEOUT)
    latest = max(any_nodes.now_us(node) for node in range(5)) + 5_000_000
    assert lease.fencing_token <= latest
    assert all(any_nodes.fence(node, "key") <= latest for node in range(5))
    lease.release()
    assert client.acquire("key", wait=TIMEOUT).fencing_token > lease.fencing_token


def test_a_clock_that_runs_behind_still_gets_a_larger_token(
    nodes: Nodes, client: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = client.acquire("key")
    first.release()
    monkeypatch.setattr(client_of(client).transport, "wall_us", lambda: 1)
    assert client.acquire("key", wait=TIMEOUT).fencing_token > first.fencing_token


def test_tokens_increase_when_all_counters_are_lost(nodes: Nodes) -> None:
    client = nodes.connected(guard=False)
    first = client.acquire("key")
    first.release()
    nodes.wait_free("key")
    nodes.flush(*range(5))
    assert client.acquire("key", wait=TIMEOUT).fencing_token > first.fencing_token


def test_a_counter_that_is_used_up_is_a_failed_node(any_nodes: Nodes, client: Redlock) -> None:
    any_nodes.set_fence(0, "key", MAX_TOKEN)
    lease = client.acquire("key", wait=TIMEOUT)
    assert lease.fencing_token < MAX_TOKEN


@pytest.mark.parametrize("how", ["extend", "release"])
def test_extension_and_release_carry_the_token_to_every_node(nodes: Nodes, how: str) -> None:
    lease = nodes.lease_of(nodes.connected())
    for node in (3, 4):
        nodes.set_fence(node, "key", 7)
        nodes.forget(node, "key")
    if how == "extend":
        lease.extend()
    else:
        lease.release()
    wait_until(lambda: all(nodes.fence(node, "key") >= lease.fencing_token for node in range(5)))


def test_several_keys_are_taken_all_or_none(any_nodes: Nodes, client: Redlock) -> None:
    any_nodes.hold("b", "somebody", range(5))
    with pytest.raises(LockContended, match="'b' is held by 'somebody'") as taken:
        client.acquire(["a", "b", "c"])
    assert (taken.value.key, taken.value.holder) == ("b", "somebody")
    any_nodes.wait_free("a")
    any_nodes.wait_free("c")


def test_several_keys_have_one_token_larger_than_that_of_each(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    for node in range(5):
        any_nodes.set_fence(node, "a", HIGH)
    lease = client.acquire(["a", "b"], wait=TIMEOUT)
    assert lease.fencing_token > HIGH
    lease.release()
    for key in "ab":
        after = client.acquire(key, wait=TIMEOUT)
        assert after.fencing_token > lease.fencing_token
        after.release()


def test_several_keys_end_together(nodes: Nodes) -> None:
    lease = nodes.lease_of(nodes.connected(), ["a", "b"])
    assert lease.keys == ("a", "b")
    lease.extend()
    assert lease.release()
    nodes.wait_free("a")
    nodes.wait_free("b")


def test_several_keys_in_any_order_do_not_deadlock(nodes: Nodes) -> None:
    clients = [nodes.connected() for _ in range(3)]
    orders = [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]

    def work(me: int) -> None:
        for _ in range(10):
            clients[me].acquire(orders[me], wait=2 * TIMEOUT).release()

    in_threads(3, work)
