"""
Calls that wait for lock nodes, made in threads and awaited in an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

#: A call takes as long as the fastest quorum of nodes, and no more than the nodes' timeout a round.
THREADS = 16


class Threads:
    """
    A pool of threads of its own: the event loop's is for others, who may fill it for minutes.

    For any event loop, and for a forked child, which starts threads of its own.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    async def run(self, call: Callable[[], T]) -> T:
        """Make a call that is to be made to its end, also if nobody waits for it any more."""
        return await asyncio.shield(asyncio.wrap_future(self._executor().submit(call)))

    async def run_or_undo(self, call: Callable[[], T], undo: Callable[[T], object]) -> T:
        """Make a call; undo in a thread what it brings when nobody waits for it any more."""
        made = self._executor().submit(call)
        try:
            return await asyncio.shield(asyncio.wrap_future(made))
        except BaseException:
            if not made.cancel():
                made.add_done_callback(lambda made: self._undo(made, undo))
            raise

    def close(self) -> None:
        """End the threads when they have done what they have to do. Idempotent."""
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown(wait=False)
        self._pool = None

    def _undo(self, made: Future[T], undo: Callable[[T], object]) -> None:
        # The event loop may be what calls this, and must not wait. When the interpreter ends, or
        # the client is closed, no thread is left; a lock ends with its TTL then.
        if made.exception() is None:
            with contextlib.suppress(RuntimeError):
                self._executor().submit(undo, made.result())

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="celery-redlock-aio")
            self._pid = os.getpid()
        return self._pool
