"""An attempt that is not granted leaves nothing behind, on no node."""

from __future__ import annotations

import pytest

from celery_redlock import LockContended, QuorumUnavailable, Redlock
from celery_redlock.core import client_of
from celery_redlock.protocol.commands import Waiter
from tests.support.nodes import Nodes
from tests.support.patching import channel_type, follow
from tests.support.waiting import TIMEOUT, wait_until

BRIEF = 1.0


def wait_tried(nodes: Nodes, name: str, *which: int) -> None:
    """Wait until nodes have run what they were told: a grant leaves its mark on the counter."""
    wait_until(
        lambda: all(nodes.fence(node, name) for node in which),
        message=lambda: f"counters: {[nodes.fence(node, name) for node in which]}",
    )


def test_a_failed_attempt_is_undone_on_the_nodes_that_granted_it(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    any_nodes.hold("key", "somebody", [0, 1, 2])
    with pytest.raises(LockContended):
        client.acquire("key")
    wait_until(lambda: any_nodes.owners("key") == ["somebody"] * 3 + [None] * 2)


def test_a_waiter_whose_attempt_is_undone_waits_on_the_nodes_that_granted_it(
    any_nodes: Nodes, client: Redlock
) -> None:
    any_nodes.hold("key", "somebody", [0, 1, 2])
    waiter = Waiter("us", 1, 60_000)
    with pytest.raises(LockContended):
        client_of(client).acquire_for_task(("key",), waiter=waiter, first_waiter=waiter)
    wait_until(lambda: all(any_nodes.waiting(node, "key") == ["us"] for node in range(5)))


def test_a_failed_attempt_is_undone_on_nodes_that_never_answered(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    any_nodes.hold("key", "somebody", [0, 1, 2])
    any_nodes.pause(3, 4)
    with pytest.raises(LockContended):
        client.acquire("key")
    any_nodes.resume(3, 4)
    wait_tried(any_nodes, "key", 3, 4)
    wait_until(lambda: any_nodes.owners("key") == ["somebody"] * 3 + [None] * 2)


def test_without_a_quorum_nothing_is_left_when_the_nodes_come_back(any_nodes: Nodes) -> None:
    client = any_nodes.connected(node_timeout=BRIEF)
    any_nodes.pause(2, 3, 4)
    with pytest.raises(QuorumUnavailable, match="no answer within"):
        client.acquire("key")
    any_nodes.resume(2, 3, 4)
    wait_tried(any_nodes, "key", *range(5))
    any_nodes.wait_free("key")


def test_an_attempt_that_an_exception_cuts_short_is_undone(
    nodes: Nodes, client: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        follow(patched, channel_type(client), "exchange", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.acquire("key")
    wait_tried(nodes, "key", 0, 1, 2)
    nodes.wait_free("key")
    assert client.acquire("key").release()


def test_a_release_follows_a_set_that_sits_in_a_stopped_node(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    any_nodes.pause(0, 1)
    lease = client.acquire("key")
    assert lease.release()
    any_nodes.resume(0, 1)
    wait_tried(any_nodes, "key", 0, 1)
    any_nodes.wait_free("key")


def test_the_release_of_another_thread_follows_a_set_that_sits_in_a_stopped_node(
    nodes: Nodes, client: Redlock
) -> None:
    nodes.pause(0, 1)
    lease = client.acquire("key")
    # The connections that the lease was taken on are in use by somebody else when it is released.
    borrowed = client_of(client).transport.checkout()
    assert lease.release()
    client_of(client).transport.checkin(borrowed)
    nodes.resume(0, 1)
    wait_tried(nodes, "key", 0, 1)
    nodes.wait_free("key")


def test_a_leftover_grant_does_not_count_for_a_later_attempt(any_nodes: Nodes) -> None:
    client = any_nodes.connected(node_timeout=BRIEF)
    any_nodes.pause(2, 3, 4)
    with pytest.raises(QuorumUnavailable):
        client.acquire("key")
    any_nodes.resume(2, 3, 4)
    wait_tried(any_nodes, "key", 2, 3, 4)
    any_nodes.wait_free("key")
    # Three grants for the attempt that failed can be read now, and one of this attempt.
    any_nodes.hold("key", "somebody", [1, 2, 3, 4])
    with pytest.raises(LockContended) as taken:
        client.acquire("key")
    assert taken.value.holder == "somebody"


def test_releasing_twice_and_late_never_touches_the_next_holder(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    first = client.acquire("key", ttl=0.5, wait=TIMEOUT)
    any_nodes.wait_free("key")
    second = client.acquire("key")
    assert not first.release()
    assert not first.release()
    any_nodes.wait_held(second)
    assert second.release()
