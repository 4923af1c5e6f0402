"""
Calls that wait for lock nodes, made in threads and awaited in an event loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from celery_redlock._greenlets.unpatched import native_lock

T = TypeVar("T")


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
