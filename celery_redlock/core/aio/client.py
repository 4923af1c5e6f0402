"""
The client for event loops.

A second implementation of the protocol would have to be kept in step with the first by hand, and
proved again. So the nodes are spoken to by the client that threads use, in threads; what takes
long, the waiting for a lock that somebody else has, is left to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Literal, Self

from celery_redlock.core.aio.lease import AsyncLease
from celery_redlock.core.aio.pool import CallPool
from celery_redlock.core.attempt import Attempt, attempt_once
from celery_redlock.core.lease import Lease
from celery_redlock.core.redlock import MAX_HOLD, Redlock
from celery_redlock.core.retry import RetryPolicy, try_until_granted_async
from celery_redlock.core.validation import checked_keys
from celery_redlock.core.wishing import AcquireRequest
from celery_redlock.errors import ConfigurationError

#: A call takes as long as the fastest quorum of nodes. More threads bear slower nodes better, but
#: where nodes are fast they take the interpreter from the event loop.
ACQUIRE_THREADS = 8
HOLDER_THREADS = 4


class AsyncRedlock:
    """
    `Redlock` for asyncio: a client for locks on N independent Redis or Valkey masters.

    Guarantee and limit are those of `Redlock`, and the two exclude each other on the same nodes.
    The event loop is not blocked: nodes are waited for in a few threads, where calls may queue, and
    other holders in the loop. What the nodes grant to a coroutine that is cancelled meanwhile is
    given back as soon as their answers are there.

    Usable from any event loop, and in a forked child. Connects when first used. Close it with
    `aclose`, or use it as `async with AsyncRedlock(...) as redlock`.

    Args:
        nodes: URLs, or one string with commas: redis://, rediss://, unix://, memory://.
        ttl: default lease length in seconds, from 0.2 to `max_ttl`.
        max_ttl: longest lease of the whole deployment in seconds; every client of the same nodes
            must use the same value, because a restarted node sits out that long.
        key_prefix: put before every key.
        drift_factor: part of a TTL by which clocks may differ while it runs.
        node_timeout: seconds in which a node has to answer.
        guard: the restart guard; None means on for two nodes and more.
        retry: a tenacity wait, or a whole `tenacity.Retrying`, for `wait`.

    Raises:
        ConfigurationError: a value cannot work; the message says what to write.
    """

    def __init__(
        self,
        nodes: str | Sequence[str],
        *,
        ttl: float | timedelta = 30.0,
        max_ttl: float | timedelta = 60.0,
        key_prefix: str = "redlock:",
        drift_factor: float = 0.01,
        node_timeout: float | timedelta = 0.2,
        guard: bool | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._redlock = Redlock(
            nodes,
            ttl=ttl,
            max_ttl=max_ttl,
            key_prefix=key_prefix,
            drift_factor=drift_factor,
            node_timeout=node_timeout,
            guard=guard,
            retry=retry,
        )
        # Who holds a lock must not queue behind all those who want one.
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

    async def acquire(
        self,
        key: str | Sequence[str],
        *,
        ttl: float | timedelta | None = None,
        wait: float | timedelta = 0.0,
        retry: RetryPolicy | None = None,
        label: str = "",
        at_least_for: float | timedelta = 0.0,
    ) -> AsyncLease:
        """
        Take a lock, or several at once, for `ttl` seconds. It is not renewed by itself.

        Args:
            key: the lock's key, of at most 10,000 bytes with the prefix; of several, at most 1,000,
                all or none are taken, in any order without deadlock.
            ttl: lease length in seconds.
            wait: how long to try in seconds.
            retry: how to wait between tries; the client's policy if not given.
            label: put into the owner value, for people who look at a node.
            at_least_for: seconds for which the lock stays taken even if it is released earlier.

        Raises:
            LockContended: somebody else holds it.
            QuorumUnavailable: too few nodes answered.
            LockKeyError: the key cannot be used.
        """
        request = self._redlock._build_request(
            checked_keys(key),
            ttl=ttl,
            wait=wait,
            retry=retry,
            label=label,
            at_least_for=at_least_for,
        )
        attempt = await self._attempt(request)
        if not attempt.is_granted:
            attempt = await try_until_granted_async(
                attempt, partial(self._attempt, request), request.budget, asyncio.sleep
            )
        return AsyncLease(self._redlock._lease_from(request, attempt), self._holder_pool)

    @contextlib.asynccontextmanager
    async def lock(
        self,
        key: str | Sequence[str],
        *,
        ttl: float | timedelta | None = None,
        wait: float | timedelta = 0.0,
        retry: RetryPolicy | None = None,
        label: str = "",
        on_lost: Literal["interrupt", "flag"] = "interrupt",
        max_hold: float = MAX_HOLD,
        at_least_for: float | timedelta = 0.0,
    ) -> AsyncIterator[AsyncLease]:
        """
        Hold a lock for a block; the watchdog renews it until the block ends.

        As `acquire`, and:

        Args:
            on_lost: what becomes of the block if the lease is lost. `interrupt`: it is cancelled,
                once, as `asyncio.timeout` does it, and `LeaseLost` comes out of it; out of its end
                if it has swallowed that. `flag`: nothing; `lease.lost` and `lease.check()` tell.
            max_hold: seconds after which it is no longer renewed but counts as lost.

        Raises:
            LeaseLost: the lease was lost before the block's end.
        """
        if on_lost not in ("interrupt", "flag"):
            raise ConfigurationError(
                f"on_lost={on_lost!r} is not a choice here; give 'interrupt' or 'flag'."
            )
        taken = await self.acquire(
            key, ttl=ttl, wait=wait, retry=retry, label=label, at_least_for=at_least_for
        )
        try:
            if on_lost == "flag":
                self._redlock.watch(taken.lease, max_hold=max_hold)
                yield taken
            else:
                async with self._interrupted(taken.lease, max_hold):
                    yield taken
        finally:
            await taken.release()

    async def aclose(self) -> None:
        """
        Release the leases that are still held, and close all connections. Idempotent.

        Calls that are under way are waited for. A block that still holds a lock goes on; its lease
        is not valid any more.
        """
        try:
            await self._holder_pool.run(self._close)
        finally:
            self._holder_pool.close(wait=False)

    def _close(self) -> None:
        self._acquire_pool.close(wait=True)
        self._redlock.close()

    async def _attempt(self, request: AcquireRequest) -> Attempt:
        def give_back(attempt: Attempt) -> None:
            if attempt.is_granted:  # any other has been undone already
                self._redlock._lease_from(replace(request, at_least_for=0.0), attempt).release()

        attempt = partial(attempt_once, self._redlock.transport, request.params)
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
