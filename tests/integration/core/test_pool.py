"""Calls that a coroutine makes in threads, and what becomes of them when its program ends."""

from __future__ import annotations

import subprocess
import sys

EXITING = """
import asyncio, concurrent.futures.thread, threading, time
from celery_redlock.core.aio import CallPool

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
