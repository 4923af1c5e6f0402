"""Extension lengthens what is held and nothing else; healing mends what a minority lost."""

from __future__ import annotations

import uuid

import pytest

from celery_redlock import LeaseLost, QuorumUnavailable, Redlock
from celery_redlock.core import client_of
from celery_redlock.core.lease import holding_of
from celery_redlock.protocol.commands import extend_together
from celery_redlock.protocol.rounds import BatchRound, Phase
from celery_redlock.protocol.votes import Acknowledged, LeaseVotes, NotHeld, Quarantined
from tests.support.commands import extend, heal
from tests.support.nodes import CALM, PREFIX, Nodes, ServerNodes
from tests.support.waiting import wait_until

KEY = (PREFIX + "key",)


def test_an_extension_lengthens_the_keys_and_the_trust(any_nodes: Nodes) -> None:
    lease = any_nodes.lease_of(any_nodes.connected(), ttl=5.0)
    lease.extend(30.0)
    assert lease.expires_in > 20
    wait_until(lambda: all(any_nodes.left(node, "key") > 20 for node in range(5)))


def test_extend_never_shortens(any_nodes: Nodes) -> None:
    lease = any_nodes.lease_of(any_nodes.connected(), ttl=30.0)
    lease.extend(1.0)
    assert lease.expires_in > 20
    assert all(any_nodes.left(node, "key") > 20 for node in range(5))


def test_extend_never_resurrects(any_nodes: Nodes) -> None:
    lease = any_nodes.lease_of(any_nodes.connected())
    any_nodes.lose("key", (0, 1, 2))
    with pytest.raises(LeaseLost, match="no longer has it"):
        lease.extend()
    assert any_nodes.owners("key") == [None, None, None, lease.owner, lease.owner]


def test_extend_creates_no_key_and_takes_none_over(any_nodes: Nodes) -> None:
    any_nodes.put(1, "key", "them")
    command = extend(KEY, "us", 60_000, 7)
    assert NotHeld(missing=True) == any_nodes.run(0, command)
    assert NotHeld(missing=False) == any_nodes.run(1, command)
    assert any_nodes.owners("key")[:2] == [None, "them"]


def test_of_leases_that_are_extended_together_only_the_lost_one_is_lost(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    leases = [client.acquire(key, ttl=5.0) for key in ("first", "lost", "last")]
    for lease in leases:
        any_nodes.wait_held(lease)
        holding_of(lease).ttl = 30.0
    any_nodes.lose("lost", range(5))

    extensions = [holding_of(lease).extend_command() for lease in leases]
    together = extend_together([command for command, _ in extensions])
    channel = client_of(client).transport.checkout()
    channel.exchange([(together, BatchRound([own for _, own in extensions]))], CALM)
    client_of(client).transport.checkin(channel)

    phases = [round_.phase for _, round_ in extensions]
    assert phases == [Phase.GRANTED, Phase.GONE, Phase.GRANTED]
    wait_until(lambda: min(any_nodes.left(4, "first"), any_nodes.left(4, "last")) > 20)


def test_a_key_of_another_type_spoils_no_lease_that_is_extended_with_it(
    one_server: ServerNodes,
) -> None:
    one_server.put(0, "key", "us")
    one_server.cluster.client(0).lpush(PREFIX + "list", "x")
    together = extend_together(
        [extend((PREFIX + "list",), "us", 60_000, 7), extend(KEY, "us", 60_000, 7)]
    )
    assert one_server.run(0, together) == LeaseVotes((NotHeld(missing=False), Acknowledged()))


def test_a_lost_lease_stays_lost_when_its_keys_come_back(nodes: Nodes) -> None:
    lease = nodes.lease_of(nodes.connected())
    nodes.lose("key", range(5))
    with pytest.raises(LeaseLost):
        lease.extend()
    nodes.hold("key", lease.owner, range(5))
    assert not lease.is_valid
    with pytest.raises(LeaseLost):
        lease.extend()
    with pytest.raises(LeaseLost):
        lease.check()
    assert not lease.release()
    nodes.wait_free("key")


def test_an_extension_has_to_complete_before_the_trust_ends(any_nodes: Nodes) -> None:
    lease = any_nodes.lease_of(any_nodes.connected(), ttl=3.0)
    any_nodes.pause(0, 1, 2)
    with pytest.raises((QuorumUnavailable, LeaseLost)):
        lease.extend()
    wait_until(lambda: not lease.is_valid)
    any_nodes.resume(0, 1, 2)
    with pytest.raises(LeaseLost, match="not extended in time"):
        lease.extend()


def test_an_extension_that_fails_names_the_nodes_and_leaves_the_trust(nodes: Nodes) -> None:
    client = nodes.connected()
    lease = nodes.lease_of(client, ttl=30.0)
    nodes.kill(0, 1, 2)
    with pytest.raises(QuorumUnavailable, match="was not extended and has") as failed:
        lease.extend()
    assert set(client.node_names[:3]) <= set(failed.value.nodes)
    assert lease.is_valid


def test_a_released_lease_cannot_be_extended(nodes: Nodes) -> None:
    lease = nodes.client().acquire("key")
    lease.release()
    with pytest.raises(LeaseLost, match="it was released"):
        lease.extend()


def test_heal_keys_that_a_minority_lost_come_back(any_nodes: Nodes) -> None:
    lease = any_nodes.lease_of(any_nodes.connected())

    def healed() -> bool:
        lease.extend()
        return all(owner == lease.owner for owner in any_nodes.owners("key"))

    for node in (0, 1):
        any_nodes.forget(node, "key")
        any_nodes.set_fence(node, "key", 1)
    wait_until(healed)
    assert all(any_nodes.fence(node, "key") >= lease.fencing_token for node in range(5))
    assert lease.release()
    any_nodes.wait_free("key")


def test_heal_does_not_take_over_what_somebody_else_has(any_nodes: Nodes) -> None:
    lease = any_nodes.lease_of(any_nodes.connected())
    any_nodes.put(0, "key", "somebody")
    for _ in range(3):
        lease.extend()
    assert any_nodes.owner(0, "key") == "somebody"
    assert NotHeld(missing=False) == any_nodes.run(0, heal(KEY, "us", 1000, 7))


def test_heal_reaches_a_quarantined_node_too(any_nodes: Nodes, client: Redlock) -> None:
    with client.lock("key", ttl=CALM) as lease:
        any_nodes.wait_held(lease)
        any_nodes.flush(0)
        vote = wait_until(lambda: any_nodes.attempt(client, uuid.uuid4().hex).round.votes[0])
        assert isinstance(vote, Quarantined)
        any_nodes.wait_held(lease)
        assert lease.is_valid
    any_nodes.wait_free("key")


@pytest.mark.full
def test_a_rolling_restart_of_all_nodes_does_not_end_a_long_task(nodes: Nodes) -> None:
    client = nodes.connected()
    with client.lock("key", ttl=CALM) as lease:
        nodes.wait_held(lease)
        for node in range(5):
            nodes.restart(node)
            nodes.wait_held(lease, [node])
        assert lease.is_valid
        assert lease.lost is None
    nodes.wait_free("key")
