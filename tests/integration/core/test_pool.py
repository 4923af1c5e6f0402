"""Calls that a coroutine makes in threads, and what becomes of them when it is cancelled."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock.core.aio.pool import CallPool

NUMBER = 3


@pytest.fixture
def pool() -> Iterator[CallPool]:
    pool = CallPool(NUMBER)
    yield pool
    pool.close(wait=True)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended so."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


EXITING = """
import asyncio, concurrent.futures.thread, threading, time
from celery_redlock.core.aio.pool import CallPool

pool, begun = CallPool(1), threading.Event()

def call():
    begun.set()
    while not concurrent.futures.thread._shutdown:
        time.sleep(0.001)
    return "brought"

async def main():
    task = asyncio.create_task(pool.run_or_undo(call, lambda brought: print("undone", brought)))
    while not begun.is_set():
        await asyncio.sleep(0.001)

asyncio.run(main())
"""


def test_what_a_call_brings_after_the_programs_end_is_undone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXITING], capture_output=True, text=True, check=True
    )
    assert done.stdout == "undone brought\n"
