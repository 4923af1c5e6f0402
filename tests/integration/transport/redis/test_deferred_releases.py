"""Releases that are deferred are reported until somebody delivers them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_redlock.testing import LocalCluster
from celery_redlock.transport import Durations, RedisTransport, parse_nodes
from tests.support.commands import release
from tests.support.waiting import wait_until

#: Where nothing listens.
NODES = parse_nodes(["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"])
RELEASE = release(("key",), "us", 0)

#: Transports that have reported releases, in order.
Reports = list[RedisTransport]


@pytest.fixture
def reports() -> Reports:
    return []


@pytest.fixture
def transport(reports: Reports) -> Iterator[RedisTransport]:
    durations = Durations(node_timeout=1.0, max_ttl=60.0, takeover=0.0)
    made = RedisTransport(NODES, durations, reports.append)
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


def test_more_than_a_socket_takes_at_once_are_sent_to_the_end(
    redlock_cluster: LocalCluster,
) -> None:
    durations = Durations(node_timeout=1.0, max_ttl=60.0, takeover=0.0)
    transport = RedisTransport(parse_nodes(redlock_cluster.urls), durations, lambda _: None)
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
