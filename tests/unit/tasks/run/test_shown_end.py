"""What Celery, and what integrates with it, is told of a run that ends without its body."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import Task, signals
from celery.exceptions import Ignore
from celery.worker.request import Request
from kombu.exceptions import OperationalError

from celery_redlock.errors import LockContended
from celery_redlock.tasks.run.shown_end import Requeued, Withdrawn, announce_ends
from tests.support.tasks import Bench
from tests.unit.tasks.jobs import before_next, job, raising


class Shop:
    """An application."""

    class Requeued(Exception):
        """Its own error."""


HOOKS = ("on_retry", "on_failure", "on_success")
SIGNALS = (signals.task_retry, signals.task_failure, signals.task_success)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The hooks and signals that have been called."""
    told: list[str] = []
    receivers = {}
    for signal in SIGNALS:
        receivers[signal] = lambda name=signal.name, **_: told.append(name)
        signal.connect(receivers[signal], weak=False)
    for hook in HOOKS:
        monkeypatch.setattr(Task, hook, lambda *_, name=hook, **__: told.append(name))
    yield told
    for signal, receiver in receivers.items():
        signal.disconnect(receiver)


def waits(bench: Bench, **options: Any) -> dict[str, Any]:
    """Have a message wait for its lock, and return its request."""
    bench.elsewhere.acquire("k", ttl=60)
    request = bench.send(job(bench, **options))
    assert bench.run(request).state == "RETRY"
    return request


def test_a_wait_calls_no_hook_and_sends_no_signal_of_a_retry_or_an_end(
    bench: Bench, told: list[str]
) -> None:
    waits(bench)
    assert told == []


def test_a_retry_of_the_body_calls_them(bench: Bench, told: list[str]) -> None:
    bench.call(job(bench, lambda self: self.retry(countdown=0)))
    assert told == ["on_retry", "task_retry"]


def test_the_result_shows_that_the_task_waits_and_for_what(bench: Bench) -> None:
    result = bench.app.AsyncResult(waits(bench)["id"])
    assert result.state == "RETRY"
    assert isinstance(result.result, LockContended)


def test_nothing_is_stored_for_a_task_whose_result_is_ignored(bench: Bench) -> None:
    request = waits(bench, ignore_result=True)
    assert bench.app.AsyncResult(request["id"]).state == "PENDING"


def test_the_state_is_stored_before_the_message_is_out(bench: Bench) -> None:
    states: list[str] = []
    request = bench.send(job(bench))
    result = bench.app.AsyncResult(request["id"])
    before_next(bench.app.amqp, "send_task_message", lambda: states.append(result.state))
    bench.elsewhere.acquire("k", ttl=60)
    bench.run(request)
    assert states == ["RETRY"]


def test_a_backend_that_is_down_does_not_keep_a_message_from_waiting(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.app.backend.store_result = raising(OperationalError("backend down"))
    waits(bench)
    assert bench.queue_length == 1
    assert "its state RETRY could not be stored: OperationalError('backend down')" in caplog.text


@pytest.mark.parametrize("says", ["raised unexpected", "raised expected"])
def test_an_error_of_the_application_is_logged_whatever_its_name(
    bench: Bench, caplog: pytest.LogCaptureFixture, says: str
) -> None:
    caplog.set_level(logging.INFO)

    def fail(self: Task) -> None:
        raise Shop.Requeued("out of stock")

    bench.call(job(bench, fail, throws=(Shop.Requeued,) if says == "raised expected" else ()))
    assert f"{says}: Requeued('out of stock')" in caplog.text


class Own(Request):
    """A request class of the application's."""


@pytest.mark.parametrize("request_class", [Request, Own, "celery.worker.request:Request"])
@pytest.mark.parametrize("from_a_child", [False, True])
def test_a_worker_sends_the_events_of_a_retry_and_of_a_revocation_and_no_other(
    bench: Bench, request_class: Any, from_a_child: bool
) -> None:
    job(bench, Request=request_class, acks_late=True).delay()
    headers, task = bench.receive(), bench.app.tasks["job"]
    for _ in range(2):
        announce_ends(task)
    sent, acknowledged = [], []
    eventer = SimpleNamespace(enabled=True, send=lambda kind, **fields: sent.append((kind, fields)))
    for error in (Requeued("held", 1.0), Withdrawn("revoked"), Ignore()):
        request = task.Request(
            SimpleNamespace(headers=headers, properties={}, delivery_info={}, body=""),
            headers=headers,
            body=((), {}, {}),
            decoded=True,
            app=bench.app,
            task=task,
            eventer=eventer,
            connection_errors=(),
            on_ack=lambda *_: acknowledged.append(1),
        )
        try:
            raise error
        except Ignore:
            info = ExceptionInfo()
        request.on_failure(pickle.loads(pickle.dumps(info)) if from_a_child else info)
    waits = {"uuid": headers["id"], "exception": "requeued for up to 1.0 s: held", "traceback": ""}
    ends = {"uuid": headers["id"], "terminated": False, "signum": None, "expired": False}
    assert sent == [("task-retried", waits), ("task-revoked", ends)]
    assert acknowledged == [1, 1, 1]
