"""Coroutines that are cancelled leave no lock behind, and hear of a lock that they lose."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable

import pytest
from tenacity import wait_fixed

from celery_redlock import AsyncLease, AsyncRedlock, ConfigurationError, LeaseLost, observe
from celery_redlock.core import aio as aio_client
from celery_redlock.core import waiting as waiting_calls
from celery_redlock.core.attempt import AcquireParams, Attempt, attempt_once
from celery_redlock.core.lease import holding_of
from celery_redlock.transport import Transport
from tests.integration.aio.test_taking import REAL, turns
from tests.support.nodes import Nodes
from tests.support.waiting import TIMEOUT, WHEN_WOKEN, wait_until


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


class LateAttempt:
    """An attempt that asks the nodes when it may; others are not late."""

    def __init__(self) -> None:
        self.begun, self.may_ask, self.ended = (threading.Event() for _ in range(3))
        self.is_late: Callable[[AcquireParams], bool] = lambda params: False

    def __call__(self, transport: Transport, params: AcquireParams) -> Attempt:
        if not self.is_late(params):
            return attempt_once(transport, params)
        self.begun.set()
        assert self.may_ask.wait(TIMEOUT)
        attempt = attempt_once(transport, params)
        self.ended.set()
        return attempt


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateAttempt:
    """The attempts of the client; some may be late."""
    attempts = LateAttempt()
    monkeypatch.setattr(aio_client, "attempt_once", attempts)
    return attempts


async def test_nodes_forget_a_coroutine_that_is_cancelled_while_they_are_asked_again(
    nodes: Nodes, redlock: AsyncRedlock, late: LateAttempt
) -> None:
    late.is_late = lambda params: params.waiter is not None
    await redlock.acquire("key", ttl=60.0, wait=TIMEOUT)
    taking = asyncio.create_task(redlock.acquire("key", ttl=60.0, wait=None))
    await asyncio.to_thread(late.begun.wait, TIMEOUT)
    await cancelled(taking)
    late.may_ask.set()
    wait_until(late.ended.is_set)
    wait_until(lambda: not any(nodes.waiting(node, "key") for node in range(5)))


async def test_a_call_that_waits_ends_when_its_client_is_closed(
    nodes: Nodes, redlock: AsyncRedlock
) -> None:
    nodes.connected().acquire("key", ttl=60.0)
    waiting = asyncio.create_task(redlock.acquire("key", wait=None, retry=WHEN_WOKEN))
    while not nodes.waiting(4, "key"):
        await asyncio.sleep(0.01)
    await redlock.aclose()
    with pytest.raises(ConfigurationError, match="is closed"):
        await asyncio.wait_for(waiting, TIMEOUT)


async def test_no_call_begins_an_attempt_while_closing_waits_for_another_one(
    nodes: Nodes, redlock: AsyncRedlock, late: LateAttempt
) -> None:
    late.is_late = lambda params: params.keys[0].text == "late"
    nodes.connected().acquire("key", ttl=60.0)
    asked = asyncio.create_task(redlock.acquire("late"))
    waiting = asyncio.create_task(redlock.acquire("key", wait=None, retry=wait_fixed(0.01)))
    await asyncio.to_thread(late.begun.wait, TIMEOUT)
    closing = asyncio.create_task(redlock.aclose())
    with pytest.raises(ConfigurationError, match="is closed"):
        await asyncio.wait_for(waiting, TIMEOUT)
    late.may_ask.set()
    await closing
    with pytest.raises(ConfigurationError, match="is closed"):
        await asked


async def test_the_loop_does_not_wait_for_the_release_of_a_lock_that_is_granted_while_closing(
    nodes: Nodes, redlock: AsyncRedlock, late: LateAttempt
) -> None:
    late.is_late = lambda params: True
    threads: list[threading.Thread] = []
    asked = asyncio.create_task(redlock.acquire("key", ttl=60.0, wait=TIMEOUT))
    await asyncio.to_thread(late.begun.wait, TIMEOUT)
    with contextlib.ExitStack() as ends:
        ends.callback(observe(lambda details: threads.append(threading.current_thread())))
        closing = asyncio.create_task(redlock.aclose())
        await turns()
        late.may_ask.set()
        with pytest.raises(ConfigurationError, match="is closed"):
            await asked
        await closing
    assert threads
    assert threading.main_thread() not in threads
    nodes.wait_free("key")


async def test_a_call_whose_client_is_closed_does_not_begin_to_listen(
    nodes: Nodes, redlock: AsyncRedlock, late: LateAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening: list[object] = []
    monkeypatch.setattr(waiting_calls, "_listen", lambda *step: listening.append(step))
    late.is_late = lambda params: True
    nodes.connected().acquire("key", ttl=60.0)
    asked = asyncio.create_task(redlock.acquire("key", wait=None))
    await asyncio.to_thread(late.begun.wait, TIMEOUT)
    closing = asyncio.create_task(redlock.aclose())
    await turns()
    late.may_ask.set()
    with pytest.raises(ConfigurationError, match="is closed"):
        await asyncio.wait_for(asked, TIMEOUT)
    await closing
    assert not listening


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
