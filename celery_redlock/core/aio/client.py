"""
The client for event loops.

A second implementation of the protocol would have to be kept in step with the first by hand, and
proved again (decision 0018). So the client for threads speaks to the nodes, in threads, and only
the long waits, for a lock that another owner has, happen in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Literal, Self, Unpack

from celery_redlock.core.aio.lease import AsyncLease
from celery_redlock.core.aio.pool import CallPool
from celery_redlock.core.attempt import Attempt, attempt_once
from celery_redlock.core.current import refuse_own_lock, under_lease
from celery_redlock.core.inspection import LockInfo
from celery_redlock.core.lease import Lease
from celery_redlock.core.limits import Limit, Rate
from celery_redlock.core.options import (
    ACQUIRE_OPTIONS,
    CLIENT_OPTIONS,
    AcquireOptions,
    AcquireRequest,
    ClientOptions,
    acquire_request,
    check_names,
)
from celery_redlock.core.redlock import LOCK_OPTIONS, MAX_HOLD, Redlock
from celery_redlock.core.retry import retry_until_granted_async
from celery_redlock.core.validation import LockKeys, checked_hold
from celery_redlock.core.waiting import CoroutineWait
from celery_redlock.errors import ConfigurationError

#: A call takes as long as the fastest quorum of nodes. More threads suit slower nodes better, but
#: with fast nodes they take the interpreter from the event loop.
ACQUIRE_THREADS = 8
HOLDER_THREADS = 4


class AsyncRedlock:
    """
    `Redlock` for asyncio: a client for locks on N independent Redis or Valkey masters.

    Guarantee and limit are those of `Redlock`, and the two exclude each other on the same nodes.
    It does not block the event loop: a few threads, where calls may queue, wait for nodes, and the
    loop waits for other holders. A lock that the nodes grant to a coroutine that was cancelled
    meanwhile is released as soon as their replies arrive.

    Usable from any event loop, and in a forked child. Connects when first used. Close it with
    `aclose`, or use it as `async with AsyncRedlock(...) as redlock`.

    Args:
        nodes: URLs, or one string with commas: redis://, rediss://, unix://, memory://.
        **options: see `ClientOptions`.

    Raises:
        ConfigurationError: a value cannot work; the message names one that can.
    """

    def __init__(self, nodes: str | Sequence[str], **options: Unpack[ClientOptions]) -> None:
        check_names(type(self).__name__, options, CLIENT_OPTIONS)
        self._redlock = Redlock(nodes, **options)
        # Two pools: a release must not queue behind calls that acquire.
        self._acquire_pool = CallPool(ACQUIRE_THREADS)
        self._holder_pool = CallPool(HOLDER_THREADS)

    def __repr__(self) -> str:
        return f"<Async{repr(self._redlock)[1:]}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes, without users and passwords."""
        return self._redlock.node_names

    async def acquire(self, key: LockKeys, **options: Unpack[AcquireOptions]) -> AsyncLease:
        """
        Acquire a lock, or several at once, for `ttl` seconds; the watchdog does not extend it.

        Args:
            key: the lock's key, of at most 10,000 bytes with the prefix; of several, at most 1,000,
                all or none are acquired, in any order without deadlock. A `Limit` is a key that
                several may hold, a `Rate` one that only so many get in a time.
            **options: see `AcquireOptions`.

        Raises:
            LockContended: another owner holds a key; or the block that asks for it holds it itself,
                and would wait for its own end.
            QuorumUnavailable: too few nodes answered.
            LockKeyError: the key cannot be used.
            ConfigurationError: the client is closed, or an option cannot work.
        """
        check_names("acquire", options, ACQUIRE_OPTIONS)
        redlock = self._redlock
        request = acquire_request(redlock.settings, redlock.transport, key, **options)
        redlock.check_open()
        if request.budget.wait:
            refuse_own_lock(redlock.transport, request.params.node_keys)
        began = redlock.transport.now()
        run = partial(self._run_attempt, request)
        attempt, attempts = await run(partial(attempt_once, redlock.transport, request.params)), 1
        if not attempt.is_granted:
            with contextlib.closing(
                CoroutineWait(redlock.transport, request, attempt, run)
            ) as wait:
                attempt, attempts = await retry_until_granted_async(
                    attempt, wait.attempt, wait.budget, wait.sleep
                )
            attempts += wait.woken_tries
        return AsyncLease(redlock._lease_from(request, attempt, attempts, began), self._holder_pool)

    @contextlib.asynccontextmanager
    async def lock(
        self,
        key: LockKeys,
        *,
        on_lost: Literal["interrupt", "flag"] = "interrupt",
        max_hold: float | timedelta = MAX_HOLD,
        **options: Unpack[AcquireOptions],
    ) -> AsyncIterator[AsyncLease]:
        """
        Hold a lock for a block; the watchdog extends it until the block ends.

        Within the block, and in coroutines that it starts, the lease is the `current_lease()`.

        Arguments as for `acquire`, and:

        Args:
            on_lost: what becomes of the block if the lease is lost. `interrupt`: it is cancelled,
                once, as by `asyncio.timeout`, and raises `LeaseLost`; at its end if it swallowed
                the cancellation. `flag`: nothing; `lease.lost` and `lease.check()` know.
            max_hold: seconds after which the watchdog reports the lease as lost instead of
                extending it.

        Raises:
            LeaseLost: the lease was lost before the block's end.
        """
        check_names("lock", options, LOCK_OPTIONS)
        if on_lost not in ("interrupt", "flag"):
            raise ConfigurationError(
                f"on_lost={on_lost!r} is not a choice here; give 'interrupt' or 'flag'."
            )
        max_hold = checked_hold(max_hold)
        held = await self.acquire(key, **options)
        try:
            if on_lost == "flag":
                self._redlock.watch(held.lease, max_hold=max_hold)
                with under_lease(held.lease):
                    yield held
            else:
                async with self._interrupted(held.lease, max_hold):
                    with under_lease(held.lease):
                        yield held
        finally:
            await held.release()

    def watch(
        self,
        lease: AsyncLease,
        *,
        on_lost: Callable[[AsyncLease], None] | None = None,
        max_hold: float | timedelta = MAX_HOLD,
    ) -> None:
        """
        Let the process's watchdog extend a lease until it is released; does not block.

        A second call for the same lease replaces `on_lost` and the end of the hold.

        Args:
            lease: a lease of this client.
            on_lost: called once, if the lease is lost, in the event loop that runs now.
            max_hold: seconds from now after which the watchdog reports the lease as lost instead
                of extending it; `math.inf` for no end.
        """
        loop = asyncio.get_running_loop()

        def notify(_: Lease) -> None:
            if on_lost is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(on_lost, lease)

        self._redlock.watch(lease.lease, on_lost=notify, max_hold=max_hold)

    def unwatch(self, lease: AsyncLease) -> None:
        """Stop extending a lease."""
        self._redlock.unwatch(lease.lease)

    async def holder(self, key: str) -> LockInfo | None:
        """Return the holder of a lock key, or None; see `Redlock.holder`."""
        return await self._holder_pool.run(partial(self._redlock.holder, key))

    async def holders(self, key: str | Limit | Rate) -> tuple[LockInfo | None, ...]:
        """Return the holder of each slot of a key with a limit or rate; see `Redlock.holders`."""
        return await self._holder_pool.run(partial(self._redlock.holders, key))

    async def force_release(self, key: str | Limit | Rate) -> bool:
        """Take a lock key away from its holder, on all nodes; see `Redlock.force_release`."""
        return await self._holder_pool.run(partial(self._redlock.force_release, key))

    async def aclose(self) -> None:
        """
        Release the leases that are still held, and close all connections. Idempotent.

        Waits for calls under way. A block that still holds a lock runs on, with an invalid lease.
        """
        try:
            await self._holder_pool.run(self._close)
        finally:
            self._holder_pool.close(wait=False)

    def _close(self) -> None:
        self._acquire_pool.close(wait=True)
        self._redlock.close()

    async def _run_attempt(
        self, request: AcquireRequest, attempt: Callable[[], Attempt]
    ) -> Attempt:
        redlock = self._redlock

        def give_back(attempt: Attempt) -> None:
            if attempt.is_granted:  # any other has been undone already
                at_once = replace(request, at_least_for=0.0)
                redlock._lease_from(at_once, attempt, 1, redlock.transport.now()).release()

        return await self._acquire_pool.run_or_undo(attempt, give_back)

    @contextlib.asynccontextmanager
    async def _interrupted(self, lease: Lease, max_hold: float) -> AsyncIterator[None]:
        """Watch a lease for a block, and cancel the block when it is lost."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                self._redlock.watch(
                    lease, on_lost=lambda _: _cancel_block(loop, limit), max_hold=max_hold
                )
                yield
        except TimeoutError as error:
            if limit.expired():
                raise lease.lost_error() from error
            raise
        if lease.lost:
            raise lease.lost_error()


def _cancel_block(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
    """Cancel a block now by its time limit, if it has not ended; from any thread."""

    def end() -> None:
        with contextlib.suppress(RuntimeError):  # the block has ended meanwhile
            limit.reschedule(loop.time())

    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(end)
