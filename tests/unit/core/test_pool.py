"""Calls that a coroutine makes in threads, and what becomes of them when it is cancelled."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_redlock.core.aio import CallPool
from tests.support.waiting import TIMEOUT, wait_until

NUMBER = 3


@pytest.fixture
def pool() -> Iterator[CallPool]:
    pool = CallPool(NUMBER)
    yield pool
    pool.close(wait=True)


class Call:
    """A call that begins when a thread is free and ends when it is told to."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.ended = threading.Event()
        self.undone: list[tuple[str, bool]] = []

    def __call__(self) -> str:
        self.begun.set()
        assert self.may_end.wait(TIMEOUT)
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


async def test_a_call_brings_its_result_or_its_error(pool: CallPool) -> None:
    assert await pool.run(lambda: 7) == 7
    assert await pool.run_or_undo(lambda: 8, print) == 8
    with pytest.raises(ZeroDivisionError):
        await pool.run_or_undo(lambda: 1 // 0, print)


@pytest.mark.parametrize("ends_first", [False, True], ids=["under way", "done, not yet delivered"])
async def test_what_a_call_brings_to_nobody_is_undone_in_a_thread(
    pool: CallPool, ends_first: bool
) -> None:
    call = Call()
    task = asyncio.create_task(pool.run_or_undo(call, call.undo))
    await began(call)
    if ends_first:
        call.may_end.set()
        # Without letting the loop take notice.
        wait_until(call.ended.is_set)
    await cancelled(task)
    call.may_end.set()
    while not call.undone:
        await asyncio.sleep(0.001)
    assert call.undone == [("brought", False)]


async def test_a_call_that_is_cancelled_before_a_thread_is_free_is_never_made(
    pool: CallPool,
) -> None:
    busy, call = [Call() for _ in range(NUMBER)], Call()
    others = [asyncio.create_task(pool.run(other)) for other in busy]
    for other in busy:
        await began(other)
    task = asyncio.create_task(pool.run_or_undo(call, call.undo))
    await asyncio.sleep(0)
    await cancelled(task)
    for other in busy:
        other.may_end.set()
    await asyncio.gather(*others)
    assert await pool.run(lambda: "after it") == "after it"
    assert (call.begun.is_set(), call.undone) == (False, [])


async def test_a_call_to_its_end_is_made_though_its_caller_is_cancelled(pool: CallPool) -> None:
    call = Call()
    task = asyncio.create_task(pool.run(call))
    await began(call)
    await cancelled(task)
    call.may_end.set()
    wait_until(call.ended.is_set)


def test_nothing_is_undone_that_has_failed_and_nobody_is_told(
    pool: CallPool, caplog: pytest.LogCaptureFixture
) -> None:
    call = Call()
    undone: list[object] = []

    def fails() -> None:
        call()
        raise ValueError

    async def main() -> None:
        # In debug mode the loop warns of whatever takes long, as it may on a busy machine.
        asyncio.get_running_loop().slow_callback_duration = math.inf
        task = asyncio.create_task(pool.run_or_undo(fails, undone.append))
        await began(call)
        await cancelled(task)
        call.may_end.set()
        await asyncio.to_thread(pool.close, wait=True)

    asyncio.run(main(), debug=True)
    gc.collect()
    assert (undone, caplog.messages) == ([], [])


async def test_a_call_that_can_have_no_thread_is_made_by_the_caller(
    pool: CallPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    assert await pool.run(threading.current_thread) is threading.current_thread()


async def test_a_call_whose_thread_could_not_be_had_is_made_once(
    pool: CallPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = ThreadPoolExecutor.submit
    made: list[int] = []

    def queue_and_fail(pool: ThreadPoolExecutor, call: Any) -> None:
        submit(pool, call)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", queue_and_fail)
    await pool.run(lambda: made.append(1))
    pool.close(wait=True)
    assert made == [1]


async def test_closing_waits_for_calls_and_a_call_afterwards_is_made(pool: CallPool) -> None:
    call = Call()
    task = asyncio.create_task(pool.run(call))
    await began(call)
    closing = asyncio.create_task(asyncio.to_thread(pool.close, wait=True))
    await asyncio.sleep(0)
    assert not closing.done()
    call.may_end.set()
    await closing
    assert call.ended.is_set()
    assert await task == "brought"
    pool.close(wait=True)
    assert await pool.run(lambda: 2) == 2
