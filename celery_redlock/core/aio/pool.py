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
    A call that is made once, by whoever comes first, unless it has been left before.

    Attributes:
        future: what it brings.
    """

    def __init__(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> None:
        self.future: Future[T] = Future()
        self._call = call
        self._undo = undo
        self._lock = threading.Lock()
        self._begun = self._has_result = self._abandoned = False

    def __call__(self) -> None:
        """Make the call, and undo what it brings if nobody waits for it any more."""
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
            # Here and now: when the interpreter ends, no thread can be had for it.
            self._undo(result)
        self.future.set_result(result)

    def abandon(self) -> bool:
        """Say that nobody waits for it any more; tell whether it has brought something already."""
        with self._lock:
            self._abandoned = True
            return self._has_result


class CallPool:
    """
    A pool of threads of its own: the event loop's is for others, who may fill it for minutes.

    For any event loops, in one thread or several, and for a forked child, which starts threads of
    its own. A call that can have no thread, as when the interpreter ends, is made by the caller.

    Args:
        number: how many there are at most.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._reset()

    def _reset(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        # Between taking the pool and giving it a call nobody may close it.
        self._lock = native_lock()

    async def run(self, call: Callable[[], T]) -> T:
        """Make a call that is made to its end, also if nobody waits for it any more."""
        return await self._result(_Call(call))

    async def run_or_undo(self, call: Callable[[], T], undo: Callable[[T], object]) -> T:
        """Make a call; undo in a thread what it brings when nobody waits for it any more."""
        made = _Call(call, undo)
        try:
            return await self._result(made)
        except BaseException:
            if made.abandon():
                self._submit(_Call(lambda: undo(made.future.result())))
            raise

    def close(self, *, wait: bool) -> None:
        """End the threads when they have done what they have to do. Idempotent."""
        if self._pid != os.getpid():
            return
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None and not sys.is_finalizing():
            pool.shutdown(wait=wait)

    async def _result(self, call: _Call[T]) -> T:
        result = asyncio.wrap_future(call.future)
        # An error that comes when nobody waits for it any more is no news.
        result.add_done_callback(_retrieve_exception)
        self._submit(call)
        return await asyncio.shield(result)

    def _submit(self, call: _Call[Any]) -> None:
        if sys.is_finalizing():
            # The pool has locks of its own, which a thread that was ended may have had.
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
