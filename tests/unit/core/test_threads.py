"""Calls that a coroutine makes in threads, and what becomes of them when it is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock.core.aio.threads import THREADS, Threads
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads()
    yield threads
    threads.close()


class Call:
    """A call that begins when a thread is free and ends when it is told to."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.ended = threading.Event()
        self.undone: list[tuple[str, bool]] = []

    def __call__(self) -> str:
        self.begun.set()
        assert self.may_end.wait(PATIENCE)
        self.ended.set()
        return "brought"

    def undo(self, brought: str) -> None:
        in_loop = threading.current_thread() is threading.main_thread()
        self.undone.append((brought, in_loop))


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended so."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def began(call: Call) -> None:
    """Let the loop run until a thread is at the call."""
    while not call.begun.is_set():
        await asyncio.sleep(0.001)


def test_a_call_brings_its_result_or_its_error(threads: Threads) -> None:
    async def main() -> None:
        assert await threads.run(lambda: 7) == 7
        assert await threads.run_or_undo(lambda: 8, print) == 8
        with pytest.raises(ZeroDivisionError):
            await threads.run_or_undo(lambda: 1 // 0, print)

    asyncio.run(main())


@pytest.mark.parametrize("ends_first", [False, True], ids=["under way", "done, not yet delivered"])
def test_what_a_call_brings_to_nobody_is_undone_in_a_thread(
    threads: Threads, ends_first: bool
) -> None:
    call = Call()

    async def main() -> None:
        task = asyncio.create_task(threads.run_or_undo(call, call.undo))
        await began(call)
        if ends_first:
            call.may_end.set()
            # Without letting the loop take notice.
            wait_until(call.ended.is_set)
        await cancelled(task)
        call.may_end.set()

    asyncio.run(main())
    wait_until(lambda: call.undone)
    assert call.undone == [("brought", False)]


def test_a_call_that_is_cancelled_before_a_thread_is_free_is_never_made(threads: Threads) -> None:
    busy, call = [Call() for _ in range(THREADS)], Call()

    async def main() -> None:
        others = [asyncio.create_task(threads.run(other)) for other in busy]
        for other in busy:
            await began(other)
        task = asyncio.create_task(threads.run_or_undo(call, call.undo))
        await asyncio.sleep(0)
        await cancelled(task)
        for other in busy:
            other.may_end.set()
        await asyncio.gather(*others)
        assert await threads.run(lambda: "after it") == "after it"

    asyncio.run(main())
    assert (call.begun.is_set(), call.undone) == (False, [])


def test_a_call_to_its_end_is_made_though_its_caller_is_cancelled(threads: Threads) -> None:
    call = Call()

    async def main() -> None:
        task = asyncio.create_task(threads.run(call))
        await began(call)
        await cancelled(task)

    asyncio.run(main())
    call.may_end.set()
    wait_until(call.ended.is_set)


def test_nothing_is_undone_that_has_failed(threads: Threads) -> None:
    call = Call()
    undone: list[object] = []

    def fails() -> None:
        call()
        raise ValueError

    async def main() -> None:
        task = asyncio.create_task(threads.run_or_undo(fails, undone.append))
        await began(call)
        await cancelled(task)
        call.may_end.set()
        await threads.run(lambda: None)

    asyncio.run(main())
    threads.close()
    wait_until(lambda: not any("celery-redlock-aio" in one.name for one in threading.enumerate()))
    assert undone == []


def test_closing_twice_is_no_error_and_a_call_afterwards_is_made(threads: Threads) -> None:
    assert asyncio.run(threads.run(lambda: 1)) == 1
    threads.close()
    threads.close()
    assert asyncio.run(threads.run(lambda: 2)) == 2
