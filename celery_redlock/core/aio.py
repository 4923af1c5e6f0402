"""
The client for event loops, its leases, and the threads in which they wait for nodes.

A second implementation of the protocol would have to be kept in step with the first by hand, and
proved again (decision 0018). So the client for threads speaks to the nodes, in threads, and only
the long waits, for a lock that another owner has, happen in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Literal, Self, TypeVar, Unpack

from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock.core.attempt import AcquireParams, Attempt, attempt_once, forget
from celery_redlock.core.client import Client
from celery_redlock.core.inspection import LockInfo
from celery_redlock.core.lease import (
    MAX_HOLD,
    Lease,
    LeaseFacts,
    holding_of,
    refuse_own_lock,
    under_lease,
    unwatch,
    watch,
)
from celery_redlock.core.limits import Limit, Rate
from celery_redlock.core.options import (
    ACQUIRE_OPTIONS,
    AcquireOptions,
    check_names,
    checked_options,
)
from celery_redlock.core.pausing import pause_lock, resume_lock
from celery_redlock.core.redlock import LOCK_OPTIONS
from celery_redlock.core.settings import CLIENT_OPTIONS, ClientOptions
from celery_redlock.core.validation import LockKeys, checked_hold
from celery_redlock.core.waiting import in_event_loop, retries
from celery_redlock.errors import ConfigurationError

#: A call takes as long as the fastest quorum of nodes. More threads suit slower nodes better, but
#: with fast nodes they take the interpreter from the event loop.
ACQUIRE_THREADS = 8
HOLDER_THREADS = 4

T = TypeVar("T")


class AsyncLease(LeaseFacts):
    """
    A lock that a quorum of nodes has granted to a coroutine: a `Lease`, for an event loop.

    Guarantee and limit are those of `Lease`. While the event loop is blocked, the watchdog's thread
    still extends a watched lease, but a coroutine learns of its loss only when the loop runs again.

    Attributes:
        lease: the lease itself, whose methods block.
    """

    def __init__(self, lease: Lease, pool: CallPool) -> None:
        super().__init__(holding_of(lease))
        self.lease = lease
        self._pool = pool

    def __repr__(self) -> str:
        return f"<Async{repr(self.lease)[1:]}"

    async def extend(self, ttl: float | timedelta | None = None) -> None:
        """
        Extend the lease to `ttl` seconds from now; never shortens it.

        Args:
            ttl: the new length in seconds, for this extension and later ones. Default: the current
                `ttl`.

        Raises:
            LeaseLost: the lease was no longer valid, or a quorum of nodes no longer has it.
            QuorumUnavailable: no quorum replied; the lease keeps its remaining time.
        """
        await self._pool.run(partial(self.lease.extend, ttl))

    async def release(self) -> bool:
        """
        Release the lock. Never raises; may be called again.

        Once it has begun, the lock is released even if the caller is cancelled.

        Returns:
            Whether the lease was still valid and a quorum of nodes still had it.
        """
        return await self._pool.run(self.lease.release)


class AsyncRedlock:
    """
    `Redlock` for asyncio: a client for locks on N independent Redis or Valkey masters.

    Guarantee and limit are those of `Redlock`; on the same nodes, their locks exclude each other.
    It does not block the event loop: a few threads wait for nodes (calls may queue for a thread),
    and the loop waits for other holders. If a coroutine is cancelled before the nodes grant it a
    lock, that lock is released as soon as their replies arrive.

    Usable from any event loop, and in a forked child. Connects when first used. Close it with
    `aclose`, or use it as `async with AsyncRedlock(...) as redlock`.

    Args:
        nodes: URLs, or one string with commas, as in `redlock_nodes`.
        **options: see `ClientOptions`.

    Raises:
        ConfigurationError: a value is invalid; the message names a valid one.
    """

    def __init__(self, nodes: str | Sequence[str], **options: Unpack[ClientOptions]) -> None:
        check_names(type(self).__name__, options, CLIENT_OPTIONS)
        self._client = Client(nodes, **options)
        # Two pools: a release must not queue behind calls that acquire.
        self._acquire_pool = CallPool(ACQUIRE_THREADS)
        self._holder_pool = CallPool(HOLDER_THREADS)

    def __repr__(self) -> str:
        return f"<Async{repr(self._client)[1:]}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes, without users and passwords."""
        return self._client.node_names

    async def acquire(self, key: LockKeys, **options: Unpack[AcquireOptions]) -> AsyncLease:
        """
        Acquire a lock, or several at once, for `ttl` seconds; the watchdog does not extend it.

        Args:
            key: the lock key, at most 10,000 bytes long with its prefix, or up to 1,000 keys, of
                which all or none are acquired. Their order does not matter; there is no deadlock.
                A `Limit` is a key that several may hold, and a `Rate` one with a maximum number of
                grants per period.
            **options: see `AcquireOptions`.

        Raises:
            LockContended: another owner holds a key, or the calling block holds it itself.
            QuorumUnavailable: too few nodes replied.
            LockKeyError: the key cannot be used.
            ConfigurationError: the client is closed, or an option is invalid.
        """
        check_names("acquire", options, ACQUIRE_OPTIONS)
        client = self._client
        params, tries = checked_options(client.settings, key, **options)
        client.check_open()
        if tries.seconds:
            refuse_own_lock(client.transport, params.keys)
        began = client.transport.now()
        attempt, attempts = await self._attempt(params), 1
        if not attempt.is_granted:
            steps = retries(client.transport, tries, attempt)
            attempt, attempts = await in_event_loop(
                steps, client.transport, client.check_open, self._attempt
            )
        lease = client.lease_from(params, tries.seconds, attempt, attempts, began)
        return AsyncLease(lease, self._holder_pool)

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
            on_lost: what happens to the block if the lease is lost. With `interrupt` it is
                cancelled once, as by `asyncio.timeout`, and raises `LeaseLost`; if it swallows the
                cancellation, it raises at its end. With `flag` nothing happens, and the block can
                look at `lease.lost` or call `lease.check()`.
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
                watch(held.lease, max_hold=max_hold)
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

        A second call for the same lease replaces `on_lost` and `max_hold`.

        Args:
            lease: a lease of this client.
            on_lost: called once with the lease if it is lost, in the current event loop.
            max_hold: seconds from now after which the watchdog reports the lease as lost instead
                of extending it; `math.inf` for no end.
        """
        loop = asyncio.get_running_loop()

        def notify(_: Lease) -> None:
            if on_lost is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(on_lost, lease)

        watch(lease.lease, on_lost=notify, max_hold=checked_hold(max_hold))

    def unwatch(self, lease: AsyncLease) -> None:
        """Stop extending a lease."""
        unwatch(lease.lease)

    async def holder(self, key: str) -> LockInfo | None:
        """Return the holder of a lock key, or None; see `Redlock.holder`."""
        return (await self.holders(key))[0]

    async def holders(self, key: str | Limit | Rate) -> tuple[LockInfo | None, ...]:
        """Return the holder of each slot of a key with a limit or rate; see `Redlock.holders`."""
        return await self._holder_pool.run(partial(self._client.holders, key))

    async def force_release(self, key: str | Limit | Rate) -> bool:
        """Take a lock key away from its holder, on all nodes; see `Redlock.force_release`."""
        return await self._holder_pool.run(partial(self._client.force_release, key))

    async def pause(self, key: str | Limit | Rate, seconds: float | timedelta) -> dict[str, str]:
        """Refuse a lock key to all callers for a while; see `Redlock.pause`."""
        return await self._holder_pool.run(partial(pause_lock, self._client, key, seconds))

    async def resume(self, key: str | Limit | Rate) -> bool:
        """End the pause of a lock key; see `Redlock.resume`."""
        return await self._holder_pool.run(partial(resume_lock, self._client, key))

    async def aclose(self) -> None:
        """
        Release the leases that are still held, and close all connections. Idempotent.

        Waits for nodes that are being asked. Calls that wait for a lock raise `ConfigurationError`.
        A block that still holds one continues without it.
        """
        # In the loop: after that, no call in it gets a new thread, or begins to listen.
        self._client.closed = True
        try:
            await self._holder_pool.run(self._close)
        finally:
            self._holder_pool.close(wait=False)

    def _close(self) -> None:
        self._acquire_pool.close(wait=True)
        self._client.close()

    async def _attempt(self, params: AcquireParams) -> Attempt:
        client = self._client

        def give_back(attempt: Attempt) -> None:
            if attempt.is_granted:  # any other has been undone already
                # Without its waiter: the loop of the call has nodes forget it.
                at_once = replace(params, at_least_for=0.0, waiter=None)
                client.lease_from(at_once, 0.0, attempt, 1, client.transport.now()).release()
            elif params.waiter is not None:
                forget(client.transport, attempt, params.waiter)

        def ask() -> Attempt:
            attempt = attempt_once(client.transport, params)
            if client.closed:  # its connections end with this call
                give_back(attempt)
            return attempt

        return await self._acquire_pool.run_or_undo(ask, give_back)

    @contextlib.asynccontextmanager
    async def _interrupted(self, lease: Lease, max_hold: float) -> AsyncIterator[None]:
        """Watch a lease for a block, and cancel the block when it is lost."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                watch(lease, on_lost=lambda _: _cancel_block(loop, limit), max_hold=max_hold)
                yield
        except TimeoutError as error:
            if limit.expired():
                raise holding_of(lease).lost_error() from error
            raise
        if lease.lost:
            raise holding_of(lease).lost_error()


def _cancel_block(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
    """Cancel a block now by its time limit, if it has not ended; from any thread."""

    def end() -> None:
        with contextlib.suppress(RuntimeError):  # the block has ended meanwhile
            limit.reschedule(loop.time())

    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(end)


class _Call(Generic[T]):
    """
    A call that runs once, in the first thread that takes it, unless it was abandoned before.

    Attributes:
        future: its result.
    """

    def __init__(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> None:
        self.future: Future[T] = Future()
        self._call = call
        self._undo = undo
        self._lock = threading.Lock()
        self._begun = self._has_result = self._abandoned = False

    def __call__(self) -> None:
        """Make the call, and undo its result if it was abandoned."""
        with self._lock:
            if self._begun or self._abandoned:
                return
            self._begun = True
        self.future.set_running_or_notify_cancel()
        try:
            result = self._call()
        except BaseException as exc:
            self.future.set_exception(exc)
            return
        with self._lock:
            self._has_result = True
            abandoned = self._abandoned
        if abandoned and self._undo is not None:
            # In this thread: while the interpreter ends no other can start.
            self._undo(result)
        self.future.set_result(result)

    def abandon(self) -> bool:
        """Give up waiting for the result; return whether there is one already."""
        with self._lock:
            self._abandoned = True
            return self._has_result


class CallPool:
    """
    A pool of threads apart from the event loop's own, which other calls may fill for minutes.

    Event loops can share it, also in different threads; a forked child starts threads of its own. A
    call that gets no thread, as when the interpreter ends, runs in the caller's thread.

    Args:
        number: the maximum number of threads.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._reset()

    def _reset(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        # Keeps `close` from shutting the pool down before a call is submitted to it.
        self._lock = native_lock()

    async def run(self, call: Callable[[], T]) -> T:
        """Make a call; it runs to its end even if the caller is cancelled."""
        return await self._result(_Call(call))

    async def run_or_undo(self, call: Callable[[], T], undo: Callable[[T], object]) -> T:
        """Make a call; if the caller is cancelled, undo its result in a thread."""
        made = _Call(call, undo)
        try:
            return await self._result(made)
        except BaseException:
            if made.abandon():
                self._submit(_Call(lambda: undo(made.future.result())))
            raise

    def close(self, *, wait: bool) -> None:
        """End the threads when they have made all calls submitted before. Idempotent."""
        if self._pid != os.getpid():
            return
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None and not sys.is_finalizing():
            pool.shutdown(wait=wait)

    async def _result(self, call: _Call[T]) -> T:
        result = asyncio.wrap_future(call.future)
        # Keeps asyncio from logging an error of an abandoned call.
        result.add_done_callback(_retrieve_exception)
        self._submit(call)
        # Not `shield`, which since Python 3.14 logs the error of a call whose caller was cancelled.
        await asyncio.wait((result,))
        return result.result()

    def _submit(self, call: _Call[Any]) -> None:
        if sys.is_finalizing():
            # A thread that the end of the interpreter has ended may have held a lock of the pool.
            call()
            return
        if self._pid != os.getpid():
            self._reset()
        try:
            with self._lock:
                if self._pool is None:
                    name = "celery-redlock-aio"
                    self._pool = ThreadPoolExecutor(self._number, thread_name_prefix=name)
                self._pool.submit(call)
        except RuntimeError:
            call()


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
