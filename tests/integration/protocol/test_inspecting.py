"""Who holds a lock is what a quorum says; evicting takes one value away."""

from __future__ import annotations

import pytest

from celery_redlock import LeaseLost, LockKeyError, QuorumUnavailable, Redlock
from celery_redlock.core import client_of
from tests.support.nodes import PREFIX, Nodes

PLACE = PREFIX + "key"


def test_a_look_tells_owner_time_left_and_token(any_nodes: Nodes, client: Redlock) -> None:
    lease = any_nodes.lease_of(client, ttl=30.0, label="running task-1")
    held = any_nodes.client().holder("key")
    assert held is not None
    assert (held.owner, held.token) == (lease.owner, lease.fencing_token)
    assert 0 < held.expires_in <= 30


def test_a_free_key_has_no_holder(any_nodes: Nodes, client: Redlock) -> None:
    assert client.holder("key") is None


def test_what_a_minority_has_is_held_by_nobody(any_nodes: Nodes, client: Redlock) -> None:
    any_nodes.hold("key", "them", [0, 1])
    assert client_of(client).inspect([PLACE]) == (None,)


def test_a_look_names_the_holder_that_a_quorum_has(any_nodes: Nodes, client: Redlock) -> None:
    any_nodes.hold("key", "them", [0, 2, 4])
    any_nodes.hold("key", "others", [1, 3])
    (held,) = client_of(client).inspect([PLACE])
    assert held is not None
    assert (held.owner, held.token) == ("them", None)


def test_a_token_that_is_not_certain_is_not_told(any_nodes: Nodes, client: Redlock) -> None:
    ahead = 2**52
    for node in range(5):
        any_nodes.set_fence(node, "key", ahead)
    lease = any_nodes.lease_of(client)
    assert lease.fencing_token == ahead + 1
    (held,) = client_of(client).inspect([PLACE])
    assert held is not None
    assert (held.owner, held.token) == (lease.owner, None)


def test_a_holder_is_seen_with_a_minority_of_nodes_down(nodes: Nodes, client: Redlock) -> None:
    lease = nodes.lease_of(client)
    nodes.kill(0, 1)
    (held,) = client_of(client).inspect([PLACE])
    assert held is not None
    assert held.owner == lease.owner


def test_without_a_quorum_nothing_is_known_about_holders(nodes: Nodes, client: Redlock) -> None:
    nodes.kill(0, 1, 2)
    with pytest.raises(QuorumUnavailable) as unknown:
        client_of(client).inspect([PLACE])
    assert len(unknown.value.nodes) >= 3


def test_the_protocols_own_records_are_not_looked_at(nodes: Nodes) -> None:
    with pytest.raises(LockKeyError):
        client_of(nodes.client()).inspect(["redlock-meta:guard"])


def test_an_evicted_holder_finds_its_lease_lost(any_nodes: Nodes, client: Redlock) -> None:
    lease = any_nodes.lease_of(client)
    assert any_nodes.client().force_release("key")
    any_nodes.wait_free("key")
    with pytest.raises(LeaseLost):
        lease.extend()


def test_a_holder_that_has_changed_is_not_evicted(any_nodes: Nodes, client: Redlock) -> None:
    lease = any_nodes.lease_of(client)
    assert not client_of(client).evict(PLACE, "the one before")
    any_nodes.wait_held(lease)
