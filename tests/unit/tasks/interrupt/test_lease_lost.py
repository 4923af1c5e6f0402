"""`LeaseLost` reaches a body, wherever the body runs, and nothing but the body."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock.errors import LeaseLost, LossReason
from celery_redlock.tasks.interrupt.body import Body
from celery_redlock.tasks.interrupt.interrupters import SignalInterrupter
from tests.support.tasks import Bench
from tests.support.waiting import TIMEOUT, wait_until
from tests.unit.tasks.interrupt.losing import in_a_thread, in_this_thread, lose
from tests.unit.tasks.jobs import job


def sleep_on(self: Any) -> None:
    lose(self.lease)
    time.sleep(TIMEOUT)


def work_on(self: Any) -> None:
    lose(self.lease)
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        pass


#: Seconds after which the watchdog has reported how a release ended, whether nodes reply or not.
SETTLED = 5.0


@pytest.mark.parametrize(
    ("run", "body"),
    [(in_this_thread, sleep_on), (in_this_thread, work_on), (in_a_thread, work_on)],
    ids=["asleep in the main thread", "busy in the main thread", "busy in another thread"],
)
def test_a_body_is_interrupted_when_it_is(
    bench: Bench, run: Callable[[Any], Any], body: Callable[..., Any]
) -> None:
    request = bench.send(job(bench, body))
    outcome = run(lambda: bench.run(request))
    assert type(outcome.value) is LeaseLost
    assert (outcome.value.key, outcome.value.reason) == ("k", LossReason.REPORTED)


def test_a_loss_that_a_finalizer_swallowed_is_raised_again(bench: Bench) -> None:
    class Finalized:
        def __del__(self) -> None:
            lose(lease[0])
            time.sleep(TIMEOUT)

    lease: list[Any] = []

    def body(self: Any) -> str:
        lease.append(self.lease)
        Finalized()
        time.sleep(TIMEOUT)
        return "not told"

    assert isinstance(bench.call(job(bench, body)).value, LeaseLost)


def test_a_body_that_ended_after_its_lease_says_so(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def body(self: Any) -> None:
        self.lease.mark_lost()

    bench.call(job(bench, body, lock_on_lost="flag"))
    assert "ended without its lock k: the application reported its loss" in caplog.text


@pytest.mark.parametrize(("ends", "warns"), [("return", True), ("raise", False)])
def test_a_body_that_caught_its_loss_and_ends_as_if_it_had_not_says_so(
    bench: Bench, ends: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def body(self: Any) -> None:
        try:
            sleep_on(self)
        except LeaseLost:
            if ends == "raise":
                raise

    bench.run(bench.send(job(bench, body)))
    assert ("ended without its lock k: the application reported" in caplog.text) == warns


def test_a_lock_that_was_deleted_meanwhile_is_reported_at_release(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.call(job(bench, lambda self: bench.node.state.keys.clear()))
    bench.let_pass(SETTLED)
    lost = "ended without its lock k: a quorum of nodes no longer has it"
    wait_until(lambda: lost in caplog.text)


@pytest.mark.parametrize("mode", ["while_executing", "until_executed"])
def test_nodes_that_do_not_answer_a_release_are_no_loss(
    bench: Bench, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = job(bench, lambda self: bench.node.pause(), lock_mode=mode, lock_ttl=30)

    bench.call(task)
    bench.node.resume()
    bench.let_pass(SETTLED)
    unconfirmed = "held its lock k to the end, but no quorum of nodes confirmed"
    wait_until(lambda: unconfirmed in caplog.text)
    assert re.search(r"keep the lock for up to (30|2\d(\.\d)?) s more", caplog.text)
    assert "ended without its lock" not in caplog.text


def test_a_release_that_is_not_confirmed_names_the_window_that_may_be_lost(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    window = {"lock_mode": "until_expired", "lock_window": 60, "lock_ttl": 30}
    bench.call(job(bench, lambda self: bench.node.pause(), **window))
    bench.node.resume()
    bench.let_pass(SETTLED)
    wait_until(lambda: re.search(r"s more, instead of the (60|5\d(\.\d)?) s for", caplog.text))


@pytest.mark.parametrize(("answer", "told"), [("interrupt", True), ("flag", False), (None, False)])
def test_a_function_decides_about_the_interruption(
    bench: Bench, answer: str | None, told: bool
) -> None:
    asked = threading.Event()

    def decide(task: Any, lease: Any) -> str | None:
        assert (task.name, lease.key, lease.lost) == ("job", "k", LossReason.REPORTED)
        asked.set()
        return answer

    def body(self: Any) -> str:
        lose(self.lease)
        asked.wait(TIMEOUT)
        if told:
            time.sleep(TIMEOUT)
        return "went on"

    value = bench.call(job(bench, body, lock_on_lost=decide)).value
    assert isinstance(value, LeaseLost) if told else value == "went on"


def test_a_function_that_fails_counts_as_interrupt(bench: Bench) -> None:
    def decide(task: Any, lease: Any) -> str:
        raise ValueError("no decision")

    outcome = bench.call(job(bench, sleep_on, lock_on_lost=decide))
    assert isinstance(outcome.value, LeaseLost)


@pytest.mark.parametrize("run", [in_this_thread, in_a_thread])
def test_a_loss_while_the_body_ends_strikes_in_the_body_or_not_at_all(
    bench: Bench, run: Callable[[Any], Any]
) -> None:
    # What escapes from the body strikes the tracer or this test, and either fails.
    def body(self: Any, pause: float) -> str:
        lose(self.lease)
        until = time.perf_counter() + pause
        while time.perf_counter() < until:
            pass
        return "done"

    task = job(bench, body, lock_key="{pause}")
    requests = [bench.send(task, number * 1e-5) for number in range(100)]

    def run_all() -> list[Any]:
        return [bench.run(request).value for request in requests]

    outcomes = run(run_all)
    assert all(value == "done" or type(value) is LeaseLost for value in outcomes)
    assert run(lambda: "nothing is left over") == "nothing is left over"


def test_a_handler_that_was_there_before_still_gets_its_signals() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGWINCH, lambda number, frame: seen.append(number))
    try:
        body = Body()
        interrupter = SignalInterrupter(body, signal.SIGWINCH)
        os.kill(os.getpid(), signal.SIGWINCH)
        wait_until(lambda: seen)
        body.finish(interrupter.cancel)
    finally:
        signal.signal(signal.SIGWINCH, before)
