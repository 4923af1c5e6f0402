"""What a client can be asked, and what it refuses at once instead of failing or waiting later."""

from __future__ import annotations

import contextvars
import math
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from celery_redlock import Redlock, current_lease
from celery_redlock.core import client_of
from celery_redlock.errors import ConfigurationError, LockContended
from celery_redlock.testing import LocalCluster
from celery_redlock.transport import WaitingCall, parse_node
from celery_redlock.transport.memory import MemoryNode, memory_node
from tests.support.nodes import CALM
from tests.support.waiting import TIMEOUT


@pytest.fixture
def redlock(redlock_memory_nodes: list[str]) -> Iterator[Redlock]:
    with Redlock(redlock_memory_nodes) as client:
        yield client


@pytest.fixture
def other(redlock_memory_nodes: list[str]) -> Iterator[Redlock]:
    with Redlock(redlock_memory_nodes) as client:
        yield client


@pytest.fixture
def nodes(redlock_memory_nodes: list[str]) -> list[MemoryNode]:
    return [memory_node(parse_node(url)) for url in redlock_memory_nodes]


def test_a_forced_release_of_a_free_key_takes_nothing(redlock: Redlock) -> None:
    assert not redlock.force_release("report")


@pytest.mark.parametrize("wait", [None, math.inf])
def test_a_wait_without_end_lasts_until_the_holder_releases(
    redlock: Redlock, other: Redlock, wait: float | None
) -> None:
    lease = redlock.acquire("report")
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(other.acquire, "report", wait=wait)
        lease.release()
        assert waiter.result(TIMEOUT).is_valid


def test_the_lease_of_a_block_is_the_current_one(redlock: Redlock) -> None:
    with redlock.lock("outer") as outer:
        with redlock.lock("inner") as inner:
            assert current_lease() is inner
        assert current_lease() is outer
    assert current_lease() is None


def test_blocks_that_end_in_another_order_leave_no_lease_behind(redlock: Redlock) -> None:
    first, second = redlock.lock("first"), redlock.lock("second")
    first.__enter__()
    second_lease = second.__enter__()
    first.__exit__(None, None, None)

    assert current_lease() is second_lease
    second.__exit__(None, None, None)
    assert current_lease() is None


@pytest.mark.parametrize("wait", [0, 5, None])
def test_a_block_that_would_wait_for_itself_is_refused_at_once(
    redlock: Redlock, wait: float | None
) -> None:
    with redlock.lock(["a", "b"]) as lease, pytest.raises(LockContended, match="not re-ent") as got:
        redlock.acquire(["c", "b"], wait=wait)

    assert (got.value.holder, got.value.keys) == (lease.owner, ("a", "b"))


def test_a_block_that_would_wait_for_itself_through_another_client_is_refused_at_once(
    redlock: Redlock, redlock_memory_nodes: list[str]
) -> None:
    with (
        Redlock(list(reversed(redlock_memory_nodes))) as other,
        redlock.lock("a"),
        pytest.raises(LockContended, match="not re-entrant"),
    ):
        other.acquire("a", wait=None)


@pytest.mark.parametrize("differs", [{"key_prefix": "other:"}, {"nodes": ["memory://another"]}])
def test_a_block_may_wait_for_the_same_key_where_it_is_another_lock(
    redlock: Redlock, redlock_memory_nodes: list[str], differs: dict[str, Any]
) -> None:
    with Redlock(**{"nodes": redlock_memory_nodes, **differs}) as other, redlock.lock("a"):
        assert other.acquire("a", wait=None).release()


def test_a_thread_that_inherits_the_context_may_wait_for_the_end_of_a_block(
    redlock: Redlock,
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with redlock.lock("report"):
            inherited = contextvars.copy_context()
            waiter = pool.submit(inherited.run, redlock.acquire, "report", wait=None)
        assert waiter.result(TIMEOUT).is_valid


def test_a_block_whose_lease_is_released_may_acquire_its_key_again(redlock: Redlock) -> None:
    with redlock.lock("report") as lease:
        lease.release()
        assert redlock.acquire("report", wait=TIMEOUT).is_valid


def test_a_conflict_names_the_vote_of_each_node(redlock: Redlock, other: Redlock) -> None:
    redlock.acquire("report", label="nightly")

    with pytest.raises(LockContended) as got:
        other.acquire("report")

    assert tuple(got.value.nodes) == other.node_names
    assert any("held by" in vote for vote in got.value.nodes.values())
    assert pickle.loads(pickle.dumps(got.value)).nodes == got.value.nodes


CALLS: dict[str, Callable[[Redlock], Any]] = {
    "acquire": lambda redlock: redlock.acquire("report"),
    "lock": lambda redlock: redlock.lock("report").__enter__(),
    "acquire_for_task": lambda redlock: client_of(redlock).acquire_for_task(["report"]),
    "reserve": lambda redlock: client_of(redlock).reserve(
        ["redlock:report"], ttl=1, grace=1, label="", retry_for=0.0
    ),
    "holder": lambda redlock: redlock.holder("report"),
    "force_release": lambda redlock: redlock.force_release("report"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_client_does_nothing(redlock: Redlock, call: str) -> None:
    redlock.close()

    with pytest.raises(ConfigurationError, match="is closed"):
        CALLS[call](redlock)


def test_a_client_that_is_closed_while_it_waits_acquires_nothing(
    redlock: Redlock, other: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = other.acquire("report")
    wait = client_of(redlock).transport.wait

    def close_meanwhile(call: WaitingCall, seconds: float) -> None:
        redlock.close()
        held.release()
        wait(call, seconds)

    monkeypatch.setattr(client_of(redlock).transport, "wait", close_meanwhile)
    with pytest.raises(ConfigurationError, match="is closed"):
        redlock.acquire("report", wait=TIMEOUT)
    assert other.holder("report") is None


def test_a_client_that_is_closed_during_its_attempt_keeps_no_lock(
    redlock: Redlock, other: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = client_of(redlock).transport.now

    def close_meanwhile() -> float:
        monkeypatch.undo()
        redlock.close()
        return now()

    monkeypatch.setattr(client_of(redlock).transport, "now", close_meanwhile)
    with pytest.raises(ConfigurationError, match="is closed"):
        redlock.acquire("report")
    assert other.holder("report") is None


def test_a_disconnected_client_connects_again(redlock: Redlock) -> None:
    lease = redlock.acquire("report")
    redlock.disconnect()

    assert not lease.is_valid
    assert redlock.acquire("report").is_valid


@pytest.mark.parametrize("guard", ["x", 1, "false"])
def test_a_guard_that_is_no_choice_is_refused(guard: Any) -> None:
    with pytest.raises(ConfigurationError, match="True or False"):
        Redlock("memory://guard", guard=guard)


def test_a_key_without_expiry_is_named_as_such() -> None:
    with LocalCluster(1) as cluster, Redlock(cluster.urls, node_timeout=CALM) as client:
        with redis.Redis.from_url(cluster.urls[0]) as program:
            program.set("redlock:report", "a hand")

        with pytest.raises(LockContended, match=r"without an expiry.*force_release"):
            client.acquire("report")
