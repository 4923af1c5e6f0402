"""A lost lease interrupts the application's code, and never what Celery does in the body."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import Retry

from celery_redlock.errors import LeaseLost
from tests.support.cases import first_of
from tests.support.tasks import Bench
from tests.support.waiting import TIMEOUT
from tests.unit.tasks.interrupt.losing import in_a_thread, in_this_thread, lose
from tests.unit.tasks.jobs import before_next, job


def work(seconds: float = TIMEOUT) -> None:
    """Run many bytecodes, each of which may be struck."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


#: Several attempts to raise the loss are made in so many seconds.
SENDING = 0.2
both = pytest.mark.parametrize("run", [in_this_thread, in_a_thread])


def outcome_of(run: Callable[..., Any], bench: Bench, body: Any, **options: Any) -> Any:
    """Declare a task, send it, and have it run in this thread or another."""
    request = bench.send(job(bench, body, **options))
    return run(lambda: bench.run(request))


def lose_while_sending(bench: Bench, task: Any) -> None:
    """Have the lease of a body lost while its next message is sent, which takes its time."""

    def lose_and_work() -> None:
        lose(task.lease)
        work(SENDING)

    before_next(bench.app.amqp, "send_task_message", lose_and_work)


def send_by_name(self: Any) -> None:
    self.app.send_task("elsewhere")


def send_as_signature(self: Any) -> None:
    self.app.signature("elsewhere").apply_async()


def send_itself(self: Any) -> None:
    self.apply_async(("another",))


def retry_and_go_on(self: Any) -> None:
    self.retry(throw=False)


@both
@pytest.mark.parametrize("send", [send_by_name, send_as_signature, send_itself, retry_and_go_on])
def test_a_loss_while_the_body_sends_a_message_is_raised_after_that(
    bench: Bench, run: Callable[..., Any], send: Callable[[Any], None]
) -> None:
    heard: list[str] = []

    def body(self: Any, key: str) -> None:
        lose_while_sending(bench, self)
        try:
            send(self)
            heard.append(f"{bench.queue_length} sent")
            work()
        except LeaseLost:
            heard.append("lost")
            raise

    request = bench.send(job(bench, body, lock_key="{key}"), "k")
    assert isinstance(run(lambda: bench.run(request)).value, LeaseLost)
    assert heard == ["1 sent", "lost"]


RETRIES = {"autoretry_for": (ValueError,), "retry_kwargs": {"countdown": 0}}


@both
@pytest.mark.parametrize("options", [{}, RETRIES], ids=["retry", "automatic retry"])
def test_a_loss_during_the_publish_of_a_retry_does_not_stop_it(
    bench: Bench, run: Callable[..., Any], options: dict[str, Any]
) -> None:
    def body(self: Any) -> None:
        lose_while_sending(bench, self)
        raise ValueError("try again") if options else self.retry(countdown=0)

    assert outcome_of(run, bench, body, **options).state == "RETRY"
    assert bench.queue_length == 1


@both
@pytest.mark.parametrize(("how", "state"), [("retry", "RETRY"), ("replace", "IGNORED")])
def test_no_loss_is_raised_in_a_body_that_celery_has_ended(
    bench: Bench, run: Callable[..., Any], how: str, state: str
) -> None:
    def body(self: Any) -> None:
        lose_while_sending(bench, self)
        try:
            if how == "retry":
                raise self.retry(countdown=0)
            self.replace(self.app.signature("elsewhere"))
        finally:
            work(SENDING)

    assert outcome_of(run, bench, body).state == state


@both
def test_a_body_goes_on_to_be_interrupted_where_it_has_no_retry_left(
    bench: Bench, run: Callable[..., Any]
) -> None:
    def body(self: Any) -> None:
        try:
            self.retry(max_retries=0)
        except self.MaxRetriesExceededError:
            lose(self.lease)
            work()

    assert isinstance(outcome_of(run, bench, body).value, LeaseLost)


@both
@pytest.mark.parametrize("first", first_of(range(3)))
def test_a_loss_that_meets_the_end_of_the_application_leaves_an_automatic_retry_alone(
    bench: Bench, run: Callable[..., Any], first: int
) -> None:
    # Either the body is interrupted, and LeaseLost is its outcome, or Celery retries: nothing
    # strikes in between, where Celery looks at what the application has raised.
    def body(self: Any, pause: float) -> None:
        lose(self.lease)
        time.sleep(pause)
        raise ValueError("try again")

    retries = {"autoretry_for": (ValueError, LeaseLost), "retry_kwargs": {"countdown": 0}}
    task = job(bench, body, lock_key="{pause}", **retries)
    requests = [bench.send(task, number * 1e-5) for number in range(first, 150, 3)]
    states = run(lambda: [bench.run(request).state for request in requests])
    assert set(states) == {"RETRY"}


@both
def test_a_loss_waits_for_the_end_of_a_task_that_the_body_runs_eagerly(
    bench: Bench, run: Callable[..., Any]
) -> None:
    def inside(self: Any) -> str:
        lose(outer[0])
        work(SENDING)
        return "whole"

    def body(self: Any) -> None:
        outer.append(self.lease)
        ended.append(inner.apply().result)
        work()

    outer: list[Any] = []
    ended: list[Any] = []
    inner = job(bench, inside, name="inner", lock_key="inner")
    assert isinstance(outcome_of(run, bench, body).value, LeaseLost)
    assert ended == ["whole"]


@both
def test_a_task_that_the_body_runs_eagerly_hears_of_its_own_loss(
    bench: Bench, run: Callable[..., Any]
) -> None:
    def inside(self: Any) -> None:
        lose(self.lease)
        work()

    inner = job(bench, inside, name="inner", lock_key="inner")
    outcome = outcome_of(run, bench, lambda self: repr(inner.apply().result))
    assert outcome.value.startswith("LeaseLost")


@both
def test_a_task_that_the_body_calls_plainly_is_part_of_it(
    bench: Bench, run: Callable[..., Any]
) -> None:
    def inside(self: Any, lease: Any) -> None:
        lose(lease)
        work()

    inner = bench.task(inside, name="inner", bind=True, autoretry_for=(OSError,))
    outcome = outcome_of(run, bench, lambda self: inner(self.lease))
    assert isinstance(outcome.value, LeaseLost)


@both
def test_a_loss_while_the_body_logs_is_not_swallowed_by_logging(
    bench: Bench, run: Callable[..., Any]
) -> None:
    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                work(SENDING)
            except Exception:
                self.handleError(record)

    logger = logging.Logger("application")
    logger.addHandler(Slow())

    def body(self: Any) -> None:
        lose(self.lease)
        logger.info("goes on")
        work()

    assert isinstance(outcome_of(run, bench, body).value, LeaseLost)


@both
def test_a_lock_that_the_body_takes_besides_is_released_whenever_its_own_is_lost(
    bench: Bench, run: Callable[..., Any]
) -> None:
    def body(self: Any, pause: float) -> None:
        lose(self.lease)
        until = time.perf_counter() + pause
        while time.perf_counter() < until:
            pass
        lease = bench.elsewhere.acquire("beside")
        lease.release()

    task = job(bench, body, lock_key="{pause}")
    requests = [bench.send(task, number * 1e-5) for number in range(100)]
    run(lambda: [bench.run(request) for request in requests])
    bench.elsewhere.acquire("beside", wait=1.0).release()


def test_a_retry_called_outside_a_request_raises_as_celery_does(bench: Bench) -> None:
    with pytest.raises(Retry):
        job(bench, lambda self: self.retry())()
