"""Where a key's highest token is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio
from hypothesis import assume, given
from hypothesis import strategies as st
from redis.crc import key_slot

from celery_redlock.errors import ConfigurationError, InvalidResourceName, StaleFencingToken
from celery_redlock.fencing import AsyncRedisFence, RedisFence
from celery_redlock.fencing.redis_script import RECORD_PREFIX, FenceRecords
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.server import ReservedPort
from tests.support.waiting import wait_until

RECORDS = FenceRecords.of(RECORD_PREFIX, None)
KEYS = st.text(alphabet="ab0{}:", max_size=8)
PREFIXES = st.text(alphabet="ab:", min_size=1, max_size=3)

#: With braces wherever they can be.
ODD_KEYS = [
    "",
    "{",
    "}",
    "{}",
    "}{",
    "{{",
    "}}",
    "a}b",
    "a{b",
    "a{}b",
    "{}a{b}",
    "}{a}",
    "{{a}}",
    "{a}b",
    "a{b}c}d",
    "{a{b}c",
    "/report/{id}",
    "/a}/é",
    "0}:",
]


def slot(key: str | bytes) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)


@given(PREFIXES, KEYS, PREFIXES, KEYS)
def test_two_keys_never_share_a_record_whatever_the_prefixes(
    prefix: str, one: str, other_prefix: str, other: str
) -> None:
    assume((prefix, one) != (other_prefix, other))
    try:
        names = [
            FenceRecords.of(prefix, None).record_key(one),
            FenceRecords.of(other_prefix, None).record_key(other),
        ]
    except InvalidResourceName:
        return
    assert names[0] != names[1]


def test_a_prefix_and_a_key_that_are_split_elsewhere_do_not_share_a_record() -> None:
    assert FenceRecords.of("a", None).record_key("b:{x}") != FenceRecords.of(
        "a:b", None
    ).record_key("{x}")


@given(st.one_of(KEYS, st.text(max_size=8), st.binary(max_size=8)))
def test_a_record_is_where_its_key_is(key: str | bytes) -> None:
    assert slot(RECORDS.record_key(key)) == slot(key)


@pytest.mark.parametrize("key", ODD_KEYS)
def test_a_record_of_a_key_with_braces_is_where_its_key_is(key: str) -> None:
    assert slot(RECORDS.record_key(key)) == slot(key)


@given(KEYS)
def test_a_key_is_never_another_key_s_record(key: str) -> None:
    with pytest.raises(InvalidResourceName):
        RECORDS.record_key(RECORDS.record_key(key))


def test_a_key_that_utf_8_cannot_encode_is_refused() -> None:
    with pytest.raises(InvalidResourceName, match="UTF-8"):
        RECORDS.record_key("\ud800")


@given(st.text(max_size=8))
def test_text_and_its_bytes_have_one_record(key: str) -> None:
    name = RECORDS.record_key(key)
    assert isinstance(name, str)
    assert RECORDS.record_key(key.encode()) == name.encode()


@pytest.fixture(scope="module")
def cluster() -> Iterator[redis.RedisCluster]:
    """A Redis Cluster of one node, which minds slots like any other."""
    bus = ReservedPort()
    config = {"cluster-enabled": "yes", "cluster-port": bus.number}
    with LocalCluster(1, armed=False, config=config) as servers:
        node = servers.client(0)
        node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: node.cluster("info")["cluster_state"] == "ok")
        with redis.RedisCluster.from_url(servers.urls[0]) as client:
            yield client
    bus.release()


@pytest.mark.parametrize(
    "key", ["a", "b", "c", "user:{7}:name", "user:{7}:mail", b"\xff", b"\xff}", *ODD_KEYS]
)
def test_a_cluster_s_keys_are_guarded(cluster: redis.RedisCluster, key: str | bytes) -> None:
    fence = RedisFence(cluster)
    fence.set(key, "new", 7)
    with pytest.raises(StaleFencingToken):
        fence.set(key, "stale", 5)
    assert (fence.get(key), fence.seen(key)) == (b"new", 7)


def test_a_cluster_s_keys_of_one_slot_are_written_together(cluster: redis.RedisCluster) -> None:
    fence = RedisFence(cluster)
    fence.run(
        "redis.call('SET', KEYS[1], 1) redis.call('SET', KEYS[2], 2)",
        ["{together}a", "{together}b"],
        (),
        7,
    )
    assert fence.get("{together}b") == b"2"


def test_a_cluster_s_pipeline_is_refused(cluster: redis.RedisCluster) -> None:
    with pytest.raises(ConfigurationError, match="not a cluster's"):
        RedisFence(cluster).run(cluster.pipeline(), ["a"], (), 7)


def test_a_cluster_s_keys_are_guarded_under_asyncio(cluster: redis.RedisCluster) -> None:
    port = cluster.get_primaries()[0].port

    async def write() -> int | None:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as client:
            fence = AsyncRedisFence(client)
            await fence.set("asyncio", "new", 7)
            with pytest.raises(StaleFencingToken):
                await fence.set("asyncio", "stale", 5)
            return await fence.seen("asyncio")

    assert asyncio.run(write()) == 7
