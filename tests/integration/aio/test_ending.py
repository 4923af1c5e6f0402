"""Coroutines that are cancelled leave no lock behind, and hear of a lock that they lose."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable

import pytest

from celery_redlock import AsyncLease, AsyncRedlock, LeaseLost
from celery_redlock.core.aio import client as aio_client
from celery_redlock.core.attempt import AcquireParams, Attempt, attempt_once
from celery_redlock.core.lease import holding_of
from celery_redlock.transport import Transport
from tests.integration.aio.test_taking import REAL, turns
from tests.support.nodes import Nodes
from tests.support.waiting import TIMEOUT, wait_until


async def cancelled(task: asyncio.Task[object]) -> None:
    """Cancel a task and wait until it has ended so."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@REAL
@pytest.mark.parametrize("at_least_for", [0.0, 50.0], ids=["at once", "for a while"])
async def test_a_coroutine_that_is_cancelled_while_nodes_are_asked_holds_nothing(
    nodes: Nodes, redlock: AsyncRedlock, at_least_for: float
) -> None:
    await (await redlock.acquire("warm-up", wait=TIMEOUT)).release()
    nodes.pause(0, 1, 2)
    taking = asyncio.create_task(redlock.acquire("key", ttl=60.0, at_least_for=at_least_for))
    while not nodes.owner(4, "key"):
        await asyncio.sleep(0.01)
    await cancelled(taking)
    nodes.resume(0, 1, 2)
    # Granted by now, or soon: to nobody.
    assert (await redlock.acquire("key", wait=TIMEOUT)).is_valid


async def test_a_coroutine_that_is_cancelled_while_it_waits_for_a_holder_takes_nothing(
    nodes: Nodes, redlock: AsyncRedlock
) -> None:
    theirs = await redlock.acquire("key", ttl=60.0)
    taking = asyncio.create_task(redlock.acquire("key", ttl=60.0, wait=TIMEOUT))
    await turns()
    await cancelled(taking)
    assert await theirs.release()
    nodes.wait_free("key")


async def test_nodes_forget_a_coroutine_that_is_cancelled_while_they_are_asked_again(
    nodes: Nodes, redlock: AsyncRedlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_ask, asked = threading.Event(), threading.Event(), threading.Event()

    def ask_late(transport: Transport, params: AcquireParams) -> Attempt:
        if params.waiter is None:  # it does not listen yet
            return attempt_once(transport, params)
        begun.set()
        assert may_ask.wait(TIMEOUT)
        attempt = attempt_once(transport, params)
        asked.set()
        return attempt

    monkeypatch.setattr(aio_client, "attempt_once", ask_late)
    await redlock.acquire("key", ttl=60.0, wait=TIMEOUT)
    taking = asyncio.create_task(redlock.acquire("key", ttl=60.0, wait=None))
    await asyncio.to_thread(begun.wait, TIMEOUT)
    await cancelled(taking)
    may_ask.set()
    wait_until(asked.is_set)
    wait_until(lambda: not any(nodes.waiting(node, "key") for node in range(5)))


async def never(lease: AsyncLease) -> None:
    """Wait for what does not come."""
    await asyncio.Event().wait()


async def fail(lease: AsyncLease) -> None:
    """Fail as code does that has a limit of its own."""
    raise TimeoutError("mine")


async def held_for(
    redlock: AsyncRedlock, body: Callable[[AsyncLease], Awaitable[None]], **options: float
) -> None:
    """Run a body under a lock."""
    async with redlock.lock("key", **options) as lease:  # type: ignore[arg-type]
        await body(lease)


async def test_a_block_that_is_cancelled_lets_go(nodes: Nodes, redlock: AsyncRedlock) -> None:
    block = asyncio.create_task(held_for(redlock, never, ttl=60.0))
    while not any(nodes.owners("key")):
        await asyncio.sleep(0.01)
    await cancelled(block)
    assert (await redlock.acquire("key", wait=TIMEOUT)).is_valid


async def test_a_blocks_own_error_comes_out_and_lets_go(
    nodes: Nodes, redlock: AsyncRedlock
) -> None:
    with pytest.raises(TimeoutError, match="mine"):
        await held_for(redlock, fail, ttl=60.0)
    nodes.wait_free("key")


async def test_a_block_under_a_limit_of_its_own_ends_as_that_says(
    nodes: Nodes, redlock: AsyncRedlock
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await held_for(redlock, never, ttl=60.0)
    nodes.wait_free("key")


async def test_a_block_whose_lease_is_lost_is_interrupted(
    nodes: Nodes, redlock: AsyncRedlock
) -> None:
    seen: list[bool] = []

    async def body(lease: AsyncLease) -> None:
        nodes.kill(0, 1, 2)
        try:
            await never(lease)
        except asyncio.CancelledError:
            seen.append(lease.is_valid)
            raise

    with pytest.raises(LeaseLost):
        await held_for(redlock, body, ttl=2.0, wait=TIMEOUT)
    assert seen == [False]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_block_that_swallows_its_interruption_fails_at_its_end(
    redlock: AsyncRedlock,
) -> None:
    ended: list[bool] = []

    async def stubborn(lease: AsyncLease) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await never(lease)
        await turns()
        ended.append(lease.is_valid)

    with pytest.raises(LeaseLost, match="as long as max_hold allows"):
        await held_for(redlock, stubborn, max_hold=0.3)
    assert ended == [False]


async def test_a_block_that_gives_its_lock_up_itself_has_lost_nothing(
    nodes: Nodes, redlock: AsyncRedlock
) -> None:
    async def give_up(lease: AsyncLease) -> None:
        assert await lease.release()

    await held_for(redlock, give_up)
    nodes.wait_free("key")


async def test_a_hold_has_an_end(redlock: AsyncRedlock) -> None:
    with pytest.raises(LeaseLost, match="as long as max_hold allows"):
        await held_for(redlock, never, max_hold=0.3)


async def test_a_block_that_wants_no_interruption_can_look(redlock: AsyncRedlock) -> None:
    async with redlock.lock("key", max_hold=0.3, on_lost="flag") as lease:
        while lease.lost is None:
            await asyncio.sleep(0.01)
        with pytest.raises(LeaseLost):
            lease.check()


async def test_a_lease_is_renewed_while_the_loop_stands_still(redlock: AsyncRedlock) -> None:
    async with redlock.lock("key", ttl=6.0) as lease:
        trusted = holding_of(lease.lease).valid_until
        # Blocks the event loop, which is wrong and happens.
        wait_until(lambda: holding_of(lease.lease).valid_until > trusted or lease.lost)
        assert lease.lost is None
