"""Releases that are deferred are reported until somebody delivers them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.testing import LocalCluster
from celery_redlock.transport import Durations, RedisTransport, parse_nodes
from celery_redlock.transport.redis import transport as module
from celery_redlock.transport.redis.channel import RedisChannel
from celery_redlock.transport.redis.connect_error import ConnectError
from celery_redlock.transport.redis.connection import ConnectionBrokenError, NodeConnection
from tests.support.commands import release
from tests.support.waiting import wait_until

#: Where nothing listens.
NODES = parse_nodes(["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"])
DURATIONS = Durations(node_timeout=1.0, max_ttl=60.0, takeover=0.0)
RELEASE = release(("key",), "us", 0)

#: Transports that have reported releases, in order.
Reports = list[RedisTransport]


@pytest.fixture
def reports() -> Reports:
    return []


@pytest.fixture
def transport(reports: Reports) -> Iterator[RedisTransport]:
    made = RedisTransport(NODES, DURATIONS, reports.append)
    yield made
    made.close()


def defer(transport: RedisTransport) -> None:
    """Release on a channel that is connected to no node."""
    channel = transport.checkout()
    channel.send(RELEASE)
    transport.checkin(channel)


def test_they_are_reported_once_while_they_are_delivered(
    transport: RedisTransport, reports: Reports
) -> None:
    defer(transport)
    assert not transport.deliver_deferred()
    defer(transport)
    assert reports == [transport]


def test_those_of_expired_keys_are_not_reported_again(
    transport: RedisTransport, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    defer(transport)
    now = transport.now()
    monkeypatch.setattr(transport, "now", lambda: now + 61.0)
    assert transport.deliver_deferred()
    assert reports == [transport]


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("where", ["a channel is made", "a channel delivers"])
def test_an_error_in_their_delivery_has_them_reported_again(
    transport: RedisTransport, reports: Reports, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    defer(transport)
    if where == "a channel is made":
        used = transport.checkout()
        monkeypatch.setattr(module, "RedisChannel", fail)
    else:
        monkeypatch.setattr(RedisChannel, "deliver_deferred", fail)
    with pytest.raises(OSError, match="Too many open files"):
        transport.deliver_deferred()
    assert reports == [transport] * 2
    monkeypatch.undo()
    if where == "a channel is made":
        transport.checkin(used)


def test_one_that_is_deferred_as_the_last_is_delivered_is_reported(
    transport: RedisTransport, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    defer(transport)

    def deliver(_: RedisChannel) -> bool:
        for health in transport._nodes.health:
            health.take_deferred()
        defer(transport)  # by another thread
        return True

    monkeypatch.setattr(RedisChannel, "deliver_deferred", deliver)
    assert transport.deliver_deferred()
    assert reports == [transport] * 2


def test_a_delivery_that_ends_before_the_report_has_returned_is_not_the_last(
    transport: RedisTransport, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deliver(_: RedisChannel) -> bool:
        for health in transport._nodes.health:
            health.take_deferred()
        return True

    def report(reported: RedisTransport) -> None:
        reports.append(reported)
        reported.deliver_deferred()

    monkeypatch.setattr(RedisChannel, "deliver_deferred", deliver)
    monkeypatch.setattr(transport, "_on_deferred", report)
    for _ in range(2):
        defer(transport)
    assert reports == [transport] * 2


def test_where_nobody_can_be_found_to_deliver_them_the_next_call_tries_and_none_fails(
    transport: RedisTransport, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_on_deferred", fail)
    defer(transport)
    monkeypatch.undo()
    defer(transport)
    assert reports == [transport]


def test_a_connection_that_breaks_as_they_are_sent_costs_none(
    transport: RedisTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_(*_: object) -> None:
        raise ConnectionBrokenError("reset")

    ours, theirs = socket.socketpair()
    connection: Any = NodeConnection(SimpleNamespace(disconnect=ours.close), ours)
    monkeypatch.setattr(NodeConnection, "send", break_)
    for _ in range(3):
        defer(transport)
    channel = transport.checkout()
    channel._connections._deliver(0, connection)
    transport.checkin(channel)
    theirs.close()
    assert len(transport._nodes.health[0].take_deferred()) == 3


def test_they_are_not_delivered_while_a_new_connection_may_have_some_left(
    transport: RedisTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = transport.checkout()
    connections = channel._connections
    connect = connections.connect_to_deferred

    def connect_meanwhile(now: float) -> list[int]:
        fresh = connect(now)
        connections._connected.append((0, ConnectError("gone", lasting=False)))
        return fresh

    with monkeypatch.context() as patched:
        patched.setattr(connections, "connect_to_deferred", connect_meanwhile)
        assert not channel.deliver_deferred()
    assert channel.deliver_deferred()
    transport.checkin(channel)


def test_more_than_a_socket_takes_at_once_are_sent_to_the_end(
    redlock_cluster: LocalCluster,
) -> None:
    transport = RedisTransport(parse_nodes(redlock_cluster.urls), DURATIONS, lambda _: None)
    clients = [redlock_cluster.client(node) for node in range(len(redlock_cluster))]
    key = "x" * 5000
    for client in clients:
        client.set(key, "us")
    channel = transport.checkout()  # it is connected to no node
    for number in range(999):
        channel.send(release((f"{key}{number}",), "us", 0))
    channel.send(release((key,), "us", 0))
    transport.checkin(channel)
    wait_until(transport.deliver_deferred)
    assert not any(client.exists(key) for client in clients)
    transport.close()
