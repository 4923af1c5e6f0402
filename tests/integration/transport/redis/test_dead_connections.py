"""A connection that has died, told or untold, costs no lock: its work is done on a new one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redlock import Lease, Limit, QuorumUnavailable, Redlock
from celery_redlock.core import client_of
from celery_redlock.core.register import Register
from celery_redlock.protocol.rounds import ReleaseRound
from celery_redlock.testing import LocalCluster
from celery_redlock.transport.redis import channel
from tests.support.commands import release
from tests.support.nodes import ServerNodes, place
from tests.support.waiting import TIMEOUT, wait_until

NODES = 3


@pytest.fixture
def nodes(redlock_cluster_factory: Callable[..., LocalCluster]) -> Iterator[ServerNodes]:
    found = ServerNodes(redlock_cluster_factory(NODES, proxy=True))
    yield found
    found.close()


def end_by_servers(cluster: LocalCluster) -> None:
    """Let the servers close what is open, as they do to what is idle."""
    for node in range(NODES):
        cluster.client(node).client_kill_filter(_type="normal")


def end_when_used(cluster: LocalCluster) -> None:
    """Let something between answer the next bytes with a reset."""
    for node in range(NODES):
        cluster.forget(node, resets=True)


ENDS = {"closed": end_by_servers, "reset when used": end_when_used}


def reserve(client: Redlock, _: Lease) -> bool:
    """Reserve a key as the publisher of a message does."""
    options = {"ttl": 30.0, "grace": 30.0, "label": "queued", "retry_for": 0.0}
    return bool(client_of(client).reserve(["redlock:reserved"], **options))


def extend(_: Redlock, lease: Lease) -> bool:
    lease.extend(60.0)
    return lease.expires_in > 50.0


def lead(client: Redlock, _: Lease) -> bool:
    register = Register(client_of(client), "beat")
    register.claim(7)
    register.write(7, {"entry": (1, "state")})
    return list(register.read()) == ["entry"]


#: A command, and whether it did what it is for.
COMMANDS: dict[str, Callable[[Redlock, Lease], Any]] = {
    "acquire": lambda client, _: client.acquire("other", wait=0).is_valid,
    "acquire a slot": lambda client, _: client.acquire(Limit("seats", 2), wait=0).is_valid,
    "reserve": reserve,
    "extend": extend,
    "release": lambda _, lease: lease.release(),
    "holder": lambda client, lease: client.holder("key").owner == lease.owner,
    "force_release": lambda client, _: client.force_release("key"),
    "pause": lambda client, _: client.pause("other", 60.0) == {},
    "resume": lambda client, _: client.resume("key") is False,
    "register": lead,
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "idle", [0.0, 1000.0], ids=["found out before", "found out by the command"]
)
def test_what_ended_before_a_command_is_replaced_for_it(
    nodes: ServerNodes, command: str, end: str, idle: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = nodes.connected()
    lease = nodes.lease_of(client, ttl=30.0)
    monkeypatch.setattr(channel, "_IDLE", idle)
    ENDS[end](nodes.cluster)
    assert COMMANDS[command](client, lease)


def test_a_server_that_closes_what_is_idle_is_no_node_that_fails(nodes: ServerNodes) -> None:
    transport = client_of(nodes.connected()).transport
    used = transport.checkout()
    assert isinstance(used, channel.RedisChannel)
    wait_until(used.deliver_deferred)  # each node has answered all that it was sent
    end_by_servers(nodes.cluster)
    wait_until(lambda: used.deliver_deferred() and not any(used._by_node))
    assert transport.failures() == {}


def test_a_release_that_is_interrupted_before_it_is_sent_again_is_deferred(
    nodes: ServerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: channel.RedisChannel) -> None:
        raise KeyboardInterrupt

    transport = client_of(nodes.connected()).transport
    nodes.hold("key", "us", range(NODES))
    used = transport.checkout()
    end_when_used(nodes.cluster)
    with monkeypatch.context() as patched:
        patched.setattr(channel.RedisChannel, "_send_again", interrupt)
        batch = [(release((place("key"),), "us", 0), ReleaseRound(NODES))]
        with pytest.raises(KeyboardInterrupt):
            used.exchange(batch, TIMEOUT)
    transport.discard(used)
    nodes.wait_free("key")


def test_a_release_without_a_reply_is_deferred_when_its_channel_ends(nodes: ServerNodes) -> None:
    transport = client_of(nodes.connected()).transport
    nodes.hold("key", "us", range(NODES))
    used = transport.checkout()
    for node in range(NODES):
        nodes.cluster.forget(node)
    used.exchange([(release((place("key"),), "us", 0), ReleaseRound(NODES))], 0.01)
    transport.discard(used)
    nodes.wait_free("key")


def test_a_node_that_is_gone_is_named_although_its_commands_are_sent_again(
    nodes: ServerNodes,
) -> None:
    client = nodes.connected()
    for node in range(NODES):
        nodes.cluster.refuse(node)
    with pytest.raises(QuorumUnavailable) as failed:
        client.acquire("key", wait=0)
    assert failed.value.nodes.keys() == set(client.node_names)


def test_connections_that_died_in_silence_while_idle_are_replaced_before_a_command(
    nodes: ServerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = nodes.connected()
    monkeypatch.setattr(channel, "_IDLE", 0.0)
    monkeypatch.setattr(channel, "_LONG_IDLE", 0.0)
    for node in range(NODES):
        nodes.cluster.forget(node)
    assert client.acquire("key", wait=0).is_valid


def test_connections_that_died_in_silence_between_two_commands_are_replaced(
    nodes: ServerNodes,
) -> None:
    client = nodes.connected(node_timeout=0.2)
    for node in range(NODES):
        nodes.cluster.forget(node)
    assert client.acquire("key", wait=TIMEOUT).is_valid


def test_a_block_outlives_the_silent_death_of_all_its_connections(nodes: ServerNodes) -> None:
    client = nodes.connected(node_timeout=0.2)
    with client.lock("key", ttl=10.0, wait=TIMEOUT) as lease:
        for node in range(NODES):
            nodes.cluster.forget(node)
        # An extension reaches a quorum before the lease would have ended. It moves the end by a
        # third of the TTL, and what is left is at any moment less than it was after the acquire.
        ends = time.monotonic() + lease.expires_in
        wait_until(
            lambda: time.monotonic() + lease.expires_in > ends + 1.0 or not lease.is_valid,
            interval=0.001,
        )
        assert lease.is_valid
