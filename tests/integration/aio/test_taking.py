"""A lock in an event loop: who gets it, when it is let go, and that the loop runs meanwhile."""

from __future__ import annotations

import asyncio
import multiprocessing

import pytest
from tenacity import wait_random

from celery_redlock import AsyncRedlock, LeaseLost, LockContended, LockKeyError, QuorumUnavailable
from celery_redlock.errors import ConfigurationError
from tests.support.nodes import Nodes
from tests.support.waiting import TIMEOUT, wait_until

#: Only real servers leave a call without a reply while they are stopped.
REAL = pytest.mark.parametrize("nodes", ["servers"], indirect=True)


async def turns(number: int = 100) -> None:
    """Let everything else in the loop run so many times."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_coroutines_and_threads_exclude_each_other(
    nodes: Nodes, redlock: AsyncRedlock
) -> None:
    threads = nodes.connected()
    lease = await redlock.acquire("key")
    with pytest.raises(LockContended):
        threads.acquire("key")
    assert await lease.release()
    theirs = threads.acquire("key", wait=TIMEOUT)
    with pytest.raises(LockContended):
        await redlock.acquire("key")
    assert theirs.fencing_token > lease.fencing_token


async def test_one_coroutine_at_a_time_holds_a_lock_and_tokens_grow(redlock: AsyncRedlock) -> None:
    holders = 0
    most = 0
    tokens: list[int] = []

    async def work() -> None:
        nonlocal holders, most
        jitter = wait_random(0, 0.02)
        async with redlock.lock("key", wait=TIMEOUT, retry=jitter) as lease:
            holders += 1
            most = max(most, holders)
            tokens.append(lease.fencing_token)
            await turns(3)
            holders -= 1

    await asyncio.gather(*(work() for _ in range(30)))  # more than there are threads
    assert (most, len(tokens)) == (1, 30)
    assert tokens == sorted(set(tokens))


@REAL
async def test_the_loop_runs_while_nodes_are_waited_for(
    nodes: Nodes, redlock: AsyncRedlock
) -> None:
    await (await redlock.acquire("warm-up", wait=TIMEOUT)).release()
    nodes.pause(0, 1, 2)
    taking = asyncio.create_task(redlock.acquire("key"))
    await turns()
    assert not taking.done()
    nodes.resume(0, 1, 2)
    assert (await taking).is_valid


async def test_the_loop_runs_while_another_holder_is_waited_for(
    nodes: Nodes, redlock: AsyncRedlock
) -> None:
    theirs = nodes.connected().acquire("key", ttl=60.0)
    taking = asyncio.create_task(redlock.acquire("key", wait=TIMEOUT))
    await turns()
    assert not taking.done()
    theirs.release()
    assert (await taking).fencing_token > theirs.fencing_token


async def test_a_lease_is_extended_and_ends_with_its_release(
    nodes: Nodes, redlock: AsyncRedlock
) -> None:
    lease = await redlock.acquire(["key", "another"], ttl=20.0)
    await lease.extend(50.0)
    assert lease.expires_in > 30
    assert (lease.key, lease.keys) == ("key", ("key", "another"))
    assert await lease.release()
    assert (lease.is_valid, lease.lost) == (False, None)
    assert not await lease.release()
    with pytest.raises(LeaseLost, match="it was released"):
        lease.check()
    nodes.wait_free("key")


async def test_errors_are_those_of_the_client_for_threads(
    nodes: Nodes, redlock: AsyncRedlock
) -> None:
    with pytest.raises(LockKeyError):
        await redlock.acquire("")
    with pytest.raises(ConfigurationError, match="on_lost='raise' is not a choice here"):
        async with redlock.lock("key", on_lost="raise"):  # type: ignore[arg-type]
            pass
    nodes.kill(0, 1, 2)
    with pytest.raises(QuorumUnavailable, match="needs 3 of 5 nodes"):
        await redlock.acquire("key")
    wait_until(lambda: not nodes.owner(4, "key"))


async def test_closing_releases_what_is_held(nodes: Nodes, redlock: AsyncRedlock) -> None:
    async with redlock:
        await redlock.acquire("key", ttl=60.0)
    nodes.wait_free("key")


def test_a_client_serves_one_event_loop_after_another(redlock: AsyncRedlock) -> None:
    async def take() -> int:
        async with redlock.lock("key", wait=TIMEOUT) as lease:
            return lease.fencing_token

    tokens = [asyncio.run(take()) for _ in range(3)]
    assert tokens == sorted(set(tokens))


def test_a_forked_child_takes_locks_with_threads_of_its_own(redlock: AsyncRedlock) -> None:
    async def take(key: str) -> None:
        async with redlock.lock(key, wait=TIMEOUT) as lease:
            lease.check()

    asyncio.run(take("parent"))
    child = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(take("child")))
    child.start()
    child.join(TIMEOUT)
    assert child.exitcode == 0
