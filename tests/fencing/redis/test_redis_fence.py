"""What is particular to guarded data in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import ResponseError, WatchError

from celery_redlock.errors import ConfigurationError, StaleFencingToken
from celery_redlock.fencing import RedisFence, slot_resource
from celery_redlock.testing.plugin import ClusterFactory
from tests.support.waiting import wait_until

RECORD = "redlock-meta:seen:{a}"


@pytest.fixture
def url(redlock_cluster_factory: ClusterFactory) -> str:
    return redlock_cluster_factory(1).urls[0]


@pytest.fixture
def client(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def other(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def fence(client: redis.Redis) -> RedisFence:
    return RedisFence(client)


def test_a_script_sees_its_own_keys_and_arguments(fence: RedisFence) -> None:
    told = fence.run("return {KEYS, ARGV}", ["a", b"b\xff"], [1, "two", b"\x00"], 5)
    assert told == [[b"a", b"b\xff"], [b"1", b"two", b"\x00"]]


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("return nil", None),
        ("return 7", 7),
        ("return {1, {2}, false, 'x'}", [1, [2], None, b"x"]),
        ("return redis.call('SET', KEYS[1], 'x')", b"OK"),
        ("local a = 1 return a -- the end", 1),
        ("", None),
    ],
)
def test_a_script_s_result_is_as_without_the_guard(
    fence: RedisFence, script: str, result: object
) -> None:
    assert fence.run(script, ["a"], (), 5) == result


def test_a_registered_script_is_guarded(fence: RedisFence, client: redis.Redis) -> None:
    script = client.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    assert fence.run(script, ["a"], [3], 5) == 3


def test_an_error_of_the_script_is_the_caller_s(fence: RedisFence) -> None:
    with pytest.raises(ResponseError, match="NOSUCH"):
        fence.run("return redis.error_reply('NOSUCH thing')", ["a"], (), 5)


def test_an_error_in_the_script_tells_its_own_line(fence: RedisFence) -> None:
    with pytest.raises(ResponseError, match=r"user_script:3:"):
        fence.run("local a = 1\n\nreturn a + nothing.at.all", ["a"], (), 5)


def test_a_script_that_fails_has_shown_its_token(fence: RedisFence) -> None:
    with pytest.raises(ResponseError):
        fence.run(
            "redis.call('SET', KEYS[1], 'x') return redis.call('LPOP', KEYS[1])", ["a"], (), 5
        )
    assert (fence.get("a"), fence.seen("a")) == (b"x", 5)


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_one_key_that_has_seen_a_newer_token_stops_the_work_on_all(
    fence: RedisFence, client: redis.Redis, in_pipeline: bool
) -> None:
    fence.set("b", "newer", 7)
    work: Any = "redis.call('SET', KEYS[1], 'stale') redis.call('SET', KEYS[2], 'stale')"
    if in_pipeline:
        work = client.pipeline().set("a", "stale").set("b", "stale")
    with pytest.raises(StaleFencingToken) as caught:
        fence.run(work, ["a", "b"], (), 5)
    assert caught.value.resource == "b"
    assert client.mget("a", "b") == [None, b"newer"]
    assert (fence.seen("a"), fence.seen("b")) == (None, 7)


def test_a_server_that_forgot_the_script_gets_it_again(
    fence: RedisFence, client: redis.Redis
) -> None:
    fence.set("a", "1", 5)
    client.script_flush()
    fence.set("a", "2", 5)
    assert fence.get("a") == b"2"


def test_binary_keys_are_guarded(fence: RedisFence) -> None:
    key = b"\xff\x00}{\n"
    fence.set(key, b"1", 7)
    with pytest.raises(StaleFencingToken) as caught:
        fence.set(key, b"2", 5)
    assert (fence.get(key), caught.value.resource) == (b"1", "\\xff\x00}{\n")


def test_a_deleted_value_s_token_is_remembered(fence: RedisFence, client: redis.Redis) -> None:
    fence.set("a", "1", 7)
    client.delete("a")
    with pytest.raises(StaleFencingToken):
        fence.set("a", "stale", 5)


def test_an_expired_value_s_token_is_remembered(fence: RedisFence) -> None:
    fence.set("a", "1", 7, ttl=0.01)
    wait_until(lambda: fence.get("a") is None)
    with pytest.raises(StaleFencingToken):
        fence.set("a", "stale", 5)


def test_a_value_can_be_given_a_time_to_live(fence: RedisFence, client: redis.Redis) -> None:
    fence.set("a", "1", 7, ttl=100.0)
    assert 90_000 < client.pttl("a") <= 100_000


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_a_record_ends_so_long_after_the_last_write(client: redis.Redis, in_pipeline: bool) -> None:
    fence = RedisFence(client, record_ttl=100.0)
    for _ in range(2):
        client.pexpire(RECORD, 5)
        fence.run(client.pipeline().set("a", 1) if in_pipeline else "return 1", ["a"], (), 7)
        assert 90_000 < client.pttl(RECORD) <= 100_000


def test_a_record_does_not_end_by_itself(fence: RedisFence, client: redis.Redis) -> None:
    fence.set("a", "1", 7)
    assert client.pttl(RECORD) == -1


def test_who_may_not_read_records_is_told_so(
    client: redis.Redis, request: pytest.FixtureRequest
) -> None:
    client.acl_setuser("writer", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-get"])
    request.addfinalizer(lambda: client.acl_deluser("writer"))
    options = client.connection_pool.connection_kwargs
    with (
        redis.Redis(port=options["port"], username="writer", password="x") as writer,
        pytest.raises(ResponseError, match="permission"),
    ):
        RedisFence(writer).set("a", "1", 7)


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_a_record_of_another_type_stops_writes(
    fence: RedisFence, client: redis.Redis, in_pipeline: bool
) -> None:
    client.rpush(RECORD, "7")
    with pytest.raises(Exception, match="fence record"):
        fence.run(client.pipeline().set("a", 1) if in_pipeline else "return 1", ["a"], (), 8)
    assert client.type(RECORD) == b"list"


def test_a_pipeline_s_results_are_what_redis_py_makes_of_them(
    fence: RedisFence, client: redis.Redis
) -> None:
    pipe = client.pipeline()
    pipe.hset("a", mapping={"x": 1})
    pipe.hgetall("a")
    pipe.exists("a")
    assert fence.run(pipe, ["a"], (), 5) == [1, {b"x": b"1"}, 1]


def test_a_pipeline_runs_registered_scripts(fence: RedisFence, client: redis.Redis) -> None:
    pipe = client.pipeline()
    client.register_script("return redis.call('INCR', KEYS[1])")(keys=["a"], client=pipe)
    assert fence.run(pipe, ["a"], (), 5) == [1]


def test_a_refused_pipeline_is_empty(fence: RedisFence, client: redis.Redis) -> None:
    fence.set("a", "1", 7)
    pipe = client.pipeline().set("a", "stale")
    with pytest.raises(StaleFencingToken):
        fence.run(pipe, ["a"], (), 5)
    assert len(pipe) == 0
    assert pipe.execute() == []


def between(pipe: Any, event: Callable[[], object], times: int = 1) -> None:
    """Let something happen after a pipeline has looked at the records, before it is executed."""
    multi = pipe.multi
    happened = []

    def late() -> None:
        if len(happened) < times:
            happened.append(event())
        multi()

    pipe.multi = late


def test_a_pipeline_overtaken_between_look_and_execution_changes_nothing(
    fence: RedisFence, client: redis.Redis, other: redis.Redis
) -> None:
    pipe = client.pipeline().set("a", "stale")
    between(pipe, lambda: RedisFence(other).set("a", "newer", 7))
    with pytest.raises(StaleFencingToken):
        fence.run(pipe, ["a"], (), 5)
    assert fence.get("a") == b"newer"


def test_a_pipeline_disturbed_by_an_older_token_is_executed_once(
    fence: RedisFence, client: redis.Redis, other: redis.Redis
) -> None:
    pipe = client.pipeline().incr("a")
    between(pipe, lambda: RedisFence(other).claim("a", 3))
    assert fence.run(pipe, ["a"], (), 5) == [1]
    assert fence.get("a") == b"1"


def test_a_pipeline_whose_connection_breaks_is_not_sent_again(
    fence: RedisFence, client: redis.Redis, other: redis.Redis
) -> None:
    pipe = client.pipeline().incr("a")
    between(pipe, lambda: other.client_kill_filter(_type="normal", skipme=True), times=1)
    with pytest.raises(WatchError):
        fence.run(pipe, ["a"], (), 5)
    assert fence.get("a") is None


def add_one(fence: RedisFence, client: redis.Redis, slot: int, token: int) -> None:
    """Change a key that slots share under the record of one of them."""
    work = client.pipeline().incr("jobs:done")
    fence.run(work, [slot_resource("jobs", slot)], (), token)


def test_the_holders_of_two_slots_change_a_key_that_they_share(
    fence: RedisFence, client: redis.Redis
) -> None:
    add_one(fence, client, 0, 9)
    add_one(fence, client, 1, 5)

    assert client.get("jobs:done") == b"2"


def test_an_earlier_holder_of_a_slot_changes_no_key_that_slots_share(
    fence: RedisFence, client: redis.Redis
) -> None:
    add_one(fence, client, 0, 9)

    with pytest.raises(StaleFencingToken):
        add_one(fence, client, 0, 8)
    assert client.get("jobs:done") == b"1"


def test_a_pipeline_that_watches_is_refused(fence: RedisFence, client: redis.Redis) -> None:
    with client.pipeline() as pipe:
        pipe.watch("a")
        with pytest.raises(ConfigurationError, match="watches"):
            fence.run(pipe, ["a"], (), 5)


@pytest.mark.parametrize("work", [None, 7])
def test_what_cannot_be_run_is_refused(fence: RedisFence, work: Any) -> None:
    with pytest.raises(ConfigurationError, match="runs a Lua script"):
        fence.run(work, ["a"], (), 5)


def test_a_pipeline_of_the_other_kind_is_refused(fence: RedisFence, url: str) -> None:
    work: Any = redis.asyncio.Redis.from_url(url).pipeline()
    with pytest.raises(ConfigurationError, match="runs a Lua script"):
        fence.run(work, ["a"], (), 5)


def test_a_shebang_line_is_refused(fence: RedisFence) -> None:
    with pytest.raises(ConfigurationError, match="shebang"):
        fence.run("#!lua flags=no-writes\nreturn 1", ["a"], (), 5)


@pytest.mark.parametrize("keys", ["a", b"a", [], [7], ["redlock-meta:seen:{a}"]])
def test_wrong_keys_are_refused(fence: RedisFence, keys: Any) -> None:
    with pytest.raises(ConfigurationError):
        fence.run("return 1", keys, (), 5)


@pytest.mark.parametrize("ttl", [0, -1.0, True, "1", float("nan")])
def test_a_wrong_time_to_live_is_refused(fence: RedisFence, ttl: Any) -> None:
    with pytest.raises(ConfigurationError, match="ttl"):
        fence.set("a", "1", 5, ttl=ttl)


@pytest.mark.parametrize("prefix", ["", "a{b", "a b", "é", 7])
def test_a_wrong_prefix_is_refused(client: redis.Redis, prefix: Any) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        RedisFence(client, prefix=prefix)
