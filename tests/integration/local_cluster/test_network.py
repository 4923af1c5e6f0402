"""A local cluster breaks the network to its servers as asked, and mends it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_redlock.errors import ConfigurationError
from celery_redlock.testing import LocalCluster
from tests.support.waiting import wait_until


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


def test_the_network_cannot_be_broken_without_a_proxy(cluster: LocalCluster) -> None:
    with pytest.raises(ConfigurationError, match="proxy=True"):
        cluster.partition(0)
