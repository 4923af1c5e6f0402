"""A lock in an event loop: who gets it, when it is let go, and that the loop runs meanwhile."""

from __future__ import annotations

import asyncio
import multiprocessing

import pytest
from tenacity import wait_random

from celery_redlock import AsyncRedlock, LeaseLost, LockContended, LockKeyError, QuorumUnavailable
from celery_redlock.errors import ConfigurationError
from tests.support.nodes import CALM, Nodes, ServerNodes
from tests.support.waiting import TIMEOUT


def client(nodes: Nodes) -> AsyncRedlock:
    """Return a patient client; the test closes it."""
    return AsyncRedlock(nodes.urls, node_timeout=CALM)


async def turns(number: int = 100) -> None:
    """Let everything else in the loop run so many times."""
    for _ in range(number):
        await asyncio.sleep(0)


def test_coroutines_and_threads_exclude_each_other(nodes: Nodes) -> None:
    async def main() -> None:
        async with client(nodes) as redlock:
            lease = await redlock.acquire("key")
            with pytest.raises(LockContended):
                threads.acquire("key")
            assert await lease.release()
            theirs = threads.acquire("key", wait=TIMEOUT)
            with pytest.raises(LockContended):
                await redlock.acquire("key")
            assert theirs.fencing_token > lease.fencing_token

    threads = nodes.connected()
    asyncio.run(main())


def test_one_coroutine_at_a_time_holds_a_lock_and_tokens_grow(nodes: Nodes) -> None:
    holders = 0
    most = 0
    tokens: list[int] = []

    async def work(redlock: AsyncRedlock) -> None:
        nonlocal holders, most
        jitter = wait_random(0, 0.02)
        async with redlock.lock("key", wait=TIMEOUT, retry=jitter) as lease:
            holders += 1
            most = max(most, holders)
            tokens.append(lease.fencing_token)
            await turns(3)
            holders -= 1

    async def main() -> None:
        async with client(nodes) as redlock, asyncio.TaskGroup() as group:
            # More than there are threads.
            for _ in range(30):
                group.create_task(work(redlock))

    asyncio.run(main())
    assert (most, len(tokens)) == (1, 30)
    assert tokens == sorted(set(tokens))


def test_the_loop_runs_while_nodes_are_waited_for(servers: ServerNodes) -> None:
    async def main() -> None:
        async with client(servers) as redlock:
            await (await redlock.acquire("warm-up", wait=TIMEOUT)).release()
            servers.pause(0, 1, 2)
            taking = asyncio.create_task(redlock.acquire("key"))
            await turns()
            assert not taking.done()
            servers.resume(0, 1, 2)
            assert (await taking).is_valid

    asyncio.run(main())


def test_the_loop_runs_while_another_holder_is_waited_for(nodes: Nodes) -> None:
    async def main() -> None:
        async with client(nodes) as redlock:
            taking = asyncio.create_task(redlock.acquire("key", wait=TIMEOUT))
            await turns()
            assert not taking.done()
            theirs.release()
            assert (await taking).fencing_token > theirs.fencing_token

    theirs = nodes.connected().acquire("key", ttl=60.0)
    asyncio.run(main())


def test_a_lease_is_extended_and_ends_with_its_release(nodes: Nodes) -> None:
    async def main() -> None:
        async with client(nodes) as redlock:
            lease = await redlock.acquire(["key", "another"], ttl=20.0)
            await lease.extend(50.0)
            assert lease.expires_in > 30
            assert (lease.key, lease.keys) == ("key", ("key", "another"))
            assert await lease.release()
            assert (lease.is_valid, lease.lost) == (False, None)
            assert not await lease.release()
            with pytest.raises(LeaseLost, match="it was released"):
                lease.check()

    asyncio.run(main())
    nodes.wait_free("key")


def test_errors_are_those_of_the_client_for_threads(nodes: Nodes) -> None:
    async def main() -> None:
        async with client(nodes) as redlock:
            with pytest.raises(LockKeyError):
                await redlock.acquire("")
            with pytest.raises(ConfigurationError, match="on_lost='raise' is not a choice here"):
                async with redlock.lock("key", on_lost="raise"):  # type: ignore[arg-type]
                    pass
            nodes.kill(0, 1, 2)
            with pytest.raises(QuorumUnavailable, match="needs 3 of 5 nodes"):
                await redlock.acquire("key")

    asyncio.run(main())
    assert not nodes.owner(4, "key")


def test_closing_releases_what_is_held(nodes: Nodes) -> None:
    async def main() -> None:
        async with client(nodes) as redlock:
            await redlock.acquire("key", ttl=60.0)

    asyncio.run(main())
    nodes.wait_free("key")


def test_a_client_serves_one_event_loop_after_another(nodes: Nodes) -> None:
    async def take() -> int:
        async with redlock.lock("key", wait=TIMEOUT) as lease:
            return lease.fencing_token

    redlock = client(nodes)
    tokens = [asyncio.run(take()) for _ in range(3)]
    asyncio.run(redlock.aclose())
    assert tokens == sorted(set(tokens))


def test_a_forked_child_takes_locks_with_threads_of_its_own(nodes: Nodes) -> None:
    async def take(key: str) -> None:
        async with redlock.lock(key, wait=TIMEOUT) as lease:
            lease.check()

    redlock = client(nodes)
    asyncio.run(take("parent"))
    child = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(take("child")))
    child.start()
    child.join(TIMEOUT)
    assert child.exitcode == 0
    asyncio.run(redlock.aclose())
