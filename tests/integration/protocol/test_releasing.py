"""Release gives up what is ours, at once or when a minimum hold has passed."""

from __future__ import annotations

import pytest

from celery_redlock import LockContended, Redlock
from celery_redlock.protocol.votes import Acknowledged, NotHeld
from tests.support.commands import release
from tests.support.nodes import CALM, PREFIX, Nodes
from tests.support.waiting import TIMEOUT, wait_until

KEY = (PREFIX + "key",)


@pytest.mark.parametrize("wait", [True, False])
def test_a_release_frees_every_node(any_nodes: Nodes, *, wait: bool) -> None:
    lease = any_nodes.lease_of(any_nodes.connected())
    assert lease.release(wait=wait)
    assert not lease.is_valid
    any_nodes.wait_free("key")


def test_a_release_deletes_only_what_is_ours(any_nodes: Nodes) -> None:
    any_nodes.put(0, "key", "them")
    any_nodes.put(1, "key", "us")
    assert NotHeld(missing=False) == any_nodes.run(0, release(KEY, "us", 7))
    assert Acknowledged() == any_nodes.run(1, release(KEY, "us", 7))
    assert any_nodes.owners("key")[:2] == ["them", None]


def test_a_release_of_a_lease_that_ended_tells_so(nodes: Nodes) -> None:
    lease = nodes.lease_of(nodes.connected())
    nodes.lose("key", (0, 1, 2))
    assert not lease.release()
    nodes.wait_free("key")


def test_a_release_without_a_quorum_does_not_raise(nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire("key")
    nodes.kill(*range(5))
    assert not lease.release()
    assert not lease.is_valid


def test_a_minimum_hold_keeps_the_key_after_the_release(any_nodes: Nodes, client: Redlock) -> None:
    lease = any_nodes.lease_of(client, ttl=30.0, at_least_for=5.0)
    assert lease.release()
    assert not lease.is_valid
    wait_until(lambda: all(0 < any_nodes.left(node, "key") <= 5 for node in range(5)))
    with pytest.raises(LockContended):
        client.acquire("key")


def test_a_minimum_hold_ends_by_itself(nodes: Nodes, client: Redlock) -> None:
    assert client.acquire("key", ttl=30.0, at_least_for=0.3).release()
    assert client.acquire("key", wait=2 * TIMEOUT).release()


def test_a_minimum_hold_may_outlast_the_longest_lease(nodes: Nodes) -> None:
    lease = nodes.lease_of(nodes.connected(ttl=CALM, max_ttl=CALM), at_least_for=600.0)
    assert lease.release()
    wait_until(lambda: all(500 < nodes.left(node, "key") <= 600 for node in range(5)))


def test_a_minimum_hold_that_has_passed_does_not_matter(nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire("key", at_least_for=0.01)
    wait_until(lambda: lease.expires_in < 29.9)
    assert lease.release()
    nodes.wait_free("key")


def test_a_broken_counter_cannot_keep_a_lock(servers: Nodes) -> None:
    lease = servers.lease_of(servers.connected())
    for node in range(5):
        servers.set_fence(node, "key", "broken")  # type: ignore[arg-type]
    lease.release()
    servers.wait_free("key")


def test_closing_the_client_releases_what_it_holds(any_nodes: Nodes, client: Redlock) -> None:
    leases = [client.acquire(f"key-{number}") for number in range(5)]
    client.close()
    assert not any(lease.is_valid for lease in leases)
    for lease in leases:
        any_nodes.wait_free(lease.key)


def test_a_block_releases_its_lock_however_it_ends(nodes: Nodes, client: Redlock) -> None:
    with pytest.raises(ZeroDivisionError), client.lock("key"):
        _ = 1 / 0
    nodes.wait_free("key")
