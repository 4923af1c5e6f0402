"""Native threads leave logging and callbacks to whoever may wait for a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock._greenlets.threads import (
    Hub,
    call_in_app,
    current_hub,
    start_native_thread,
    start_thread,
)
from tests.support.waiting import wait_until


def in_thread(start: Callable[[Callable[[], None]], None], call: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    start(lambda: answers.append(call()))
    return wait_until(lambda: answers)[0]


@pytest.mark.parametrize("start", [start_thread, start_native_thread])
def test_without_greenlets_a_thread_runs_its_calls_itself(
    start: Callable[[Callable[[], None]], None],
) -> None:
    ran: list[int] = []

    def run() -> int:
        call_in_app(lambda: ran.append(threading.get_ident()))
        return threading.get_ident()

    ident = in_thread(start, run)
    assert ran == [ident]
    assert ident != threading.get_ident()


@pytest.mark.parametrize("start", [start_thread, start_native_thread])
def test_threads_are_daemons_that_leave_no_trace(
    start: Callable[[Callable[[], None]], None],
) -> None:
    thread = in_thread(start, threading.current_thread)
    assert (thread.daemon, thread.name) == (True, "redlock")
    wait_until(lambda: thread not in threading.enumerate())


def test_without_greenlets_there_is_no_hub() -> None:
    assert current_hub() is None


class Recorder(Hub):
    """A hub whose loop is run by hand."""

    def __init__(self, *, gone: bool = False) -> None:
        super().__init__()
        self.calls: list[Callable[[], None]] = []
        self.gone = gone

    def run(self, call: Callable[[], None]) -> None:
        if self.gone:
            raise RuntimeError("destroyed")
        self.calls.append(call)


def test_what_is_left_to_a_hub_that_is_gone_is_run_at_once() -> None:
    ran: list[str] = []
    Recorder(gone=True).spawn(lambda: ran.append("here"))
    assert ran == ["here"]


def test_what_was_finished_is_not_run_again_by_the_hub() -> None:
    ran: list[str] = []
    hub = Recorder()
    hub.spawn(lambda: ran.append("said"))
    hub.run_pending()
    for call in hub.calls:
        in_thread(start_thread, call)
    assert ran == ["said"]
