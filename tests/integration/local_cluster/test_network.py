"""A local cluster breaks the network to its servers as asked, and mends it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
import redis

from celery_redlock.errors import ConfigurationError
from celery_redlock.testing import LocalCluster
from tests.integration.local_cluster.looks import port_of
from tests.support.waiting import TIMEOUT, wait_until


@pytest.fixture(scope="module")
def shared_proxied() -> Iterator[LocalCluster]:
    with LocalCluster(1, proxy=True) as cluster:
        yield cluster


@pytest.fixture
def proxied(shared_proxied: LocalCluster) -> LocalCluster:
    shared_proxied.reset()
    return shared_proxied


def through_proxy(cluster: LocalCluster) -> redis.Redis:
    return redis.Redis.from_url(cluster.urls[0], socket_timeout=2.0, retry=None)


def test_with_a_proxy_the_urls_are_the_proxys(proxied: LocalCluster) -> None:
    assert proxied.urls != proxied.server_urls
    proxied.client(0).set("key", "value")
    with through_proxy(proxied) as client:
        assert client.get("key") == b"value"


def test_a_write_into_a_partition_lands_when_it_heals(proxied: LocalCluster) -> None:
    with through_proxy(proxied) as client:
        client.ping()
        proxied.partition(0)
        with pytest.raises(redis.TimeoutError):
            client.set("key", "late")
    assert proxied.client(0).exists("key") == 0
    proxied.heal(0)
    wait_until(lambda: proxied.client(0).get("key") == b"late", message="the late write lands")


def test_a_delayed_reply_comes_after_the_write(proxied: LocalCluster) -> None:
    with through_proxy(proxied) as client:
        client.ping()
        proxied.delay(0, 3600, only="replies")
        with pytest.raises(redis.TimeoutError):
            client.set("key", "value")
        assert proxied.client(0).get("key") == b"value"


@pytest.mark.parametrize("harm", ["partition", "refuse", "garbage", "kill"])
def test_a_node_behind_the_proxy_is_mended_by_reset(proxied: LocalCluster, harm: str) -> None:
    getattr(proxied, harm)(0)
    proxied.reset()
    with through_proxy(proxied) as client:
        assert client.ping()


@pytest.mark.parametrize("harm", ["partition", "pause"])
def test_a_command_that_waits_for_a_broken_node_is_dropped_by_a_reset(
    proxied: LocalCluster, harm: str
) -> None:
    with socket.create_connection(("127.0.0.1", port_of(proxied.urls[0])), TIMEOUT) as waiting:
        waiting.sendall(b"PING\r\n")
        assert waiting.recv(100) == b"+PONG\r\n"
        getattr(proxied, harm)(0)
        waiting.sendall(b"SET key late\r\n")
        proxied.reset()
        with contextlib.suppress(ConnectionResetError):
            assert waiting.recv(100) == b""
    assert proxied.client(0).get("key") is None


def test_the_network_cannot_be_broken_without_a_proxy(cluster: LocalCluster) -> None:
    with pytest.raises(ConfigurationError, match="proxy=True"):
        cluster.partition(0)
