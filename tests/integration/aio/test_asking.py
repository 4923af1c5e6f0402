"""Which lock a coroutine holds, who holds another, and what is refused at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from celery_redlock import AsyncLease, AsyncRedlock, LockContended, current_lease
from celery_redlock.errors import ConfigurationError
from tests.support.waiting import TIMEOUT


async def test_a_holder_is_named_until_its_lock_is_taken_away(redlock: AsyncRedlock) -> None:
    lease = await redlock.acquire("key")
    found = await redlock.holder("key")
    assert found is not None
    assert found.owner == lease.owner
    assert await redlock.force_release("key")
    assert await redlock.holder("key") is None


async def test_a_lease_can_be_watched_and_its_loss_is_reported_in_the_loop(
    redlock: AsyncRedlock,
) -> None:
    lease = await redlock.acquire("key")
    losses: asyncio.Queue[AsyncLease] = asyncio.Queue()
    redlock.watch(lease, on_lost=losses.put_nowait, max_hold=0.2)
    assert await asyncio.wait_for(losses.get(), TIMEOUT) is lease
    assert lease.lost


@pytest.mark.parametrize("on_lost", ["interrupt", "flag"])
async def test_the_lease_of_a_block_is_the_current_one_there_and_in_its_coroutines(
    redlock: AsyncRedlock, on_lost: Any
) -> None:
    async def current() -> Any:
        return current_lease()

    async with redlock.lock("key", on_lost=on_lost) as held:
        assert current_lease() is held.lease
        assert await asyncio.gather(current()) == [held.lease]
    assert current_lease() is None


async def test_a_block_that_would_wait_for_itself_is_refused_at_once(redlock: AsyncRedlock) -> None:
    async with redlock.lock("key"):
        with pytest.raises(LockContended, match="not re-entrant"):
            await redlock.acquire("key", wait=None)


async def test_a_coroutine_that_a_block_starts_may_wait_for_its_end(redlock: AsyncRedlock) -> None:
    async with redlock.lock("key"):
        waiter = asyncio.create_task(redlock.acquire("key", wait=None))
        await asyncio.sleep(0)
    assert (await waiter).is_valid


async def test_a_closed_client_acquires_nothing(redlock: AsyncRedlock) -> None:
    await redlock.aclose()
    with pytest.raises(ConfigurationError, match="is closed"):
        await redlock.acquire("key")
