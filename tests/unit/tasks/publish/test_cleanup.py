"""What a worker's main process does with the lock of a message that never gets a body."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import signals
from celery.app.task import Context
from celery.worker import state as worker_state
from celery.worker.control import Panel
from celery.worker.request import Request
from celery.worker.strategy import proto1_to_proto2

from celery_redlock.core import client_of
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.tasks.message.envelope import HEADER
from celery_redlock.tasks.publish.cleanup import CleanupStep
from tests.support.tasks import Bench
from tests.support.waiting import wait_until
from tests.unit.tasks.jobs import raising, retry_once


class Consumer:
    """Stands for the sender of signals about messages."""

    def __init__(self, app: Any) -> None:
        self.app = app


def declare(bench: Bench, **options: Any) -> Any:
    return bench.task(lambda: None, lock_key="k", lock_mode="until_executed", **options)


def sent(bench: Bench) -> tuple[Any, dict[str, Any]]:
    task = declare(bench)
    message = bench.send(task)
    assert bench.is_held("k")
    return task, message


def called(bench: Bench, **options: Any) -> Request:
    """Return the request of a call that no worker has received."""
    declare(bench).apply_async((), **options)
    assert bench.is_held("k")
    return Request(bench.take(), app=bench.app)


def receive(request: Request) -> Request:
    """Have a worker receive a message; what it waits for next does not matter."""
    signals.task_received.send(sender=None, request=request)
    return request


def received(bench: Bench, **options: Any) -> Request:
    """Return a call's request in the main process of a worker."""
    return receive(called(bench, **options))


def test_the_request_of_a_message_names_its_content_type_to_the_pool_process(bench: Bench) -> None:
    request = received(bench)
    assert request.request_dict["properties"]["content_type"] == "application/json"


def wait_free(bench: Bench) -> None:
    wait_until(lambda: not bench.is_held("k"), message="the lock is still taken")


def revoke(task: Any, message: dict[str, Any], **how: Any) -> None:
    signals.task_revoked.send(sender=task, request=Context(message), **how)


def reject_malformed(task: Any, message: dict[str, Any]) -> None:
    of_message = SimpleNamespace(headers=message)
    signals.task_rejected.send(sender=Consumer(task.app), message=of_message, exc=None)


def test_a_message_that_is_malformed_frees_its_lock(bench: Bench) -> None:
    reject_malformed(*sent(bench))
    wait_free(bench)


@pytest.mark.parametrize("loss", [WorkerLostError("SIGKILL"), TimeLimitExceeded(1)])
def test_a_message_whose_process_was_lost_before_its_body_began_frees_its_lock(
    bench: Bench, loss: Exception
) -> None:
    task, message = sent(bench)
    task.request_stack.push(Context(message))
    try:
        signals.task_failure.send(sender=task, task_id="x", exception=ValueError("a body's"))
        assert bench.is_held("k")
        signals.task_failure.send(sender=task, task_id="x", exception=loss)
    finally:
        task.request_stack.pop()
    wait_free(bench)


def test_a_lock_that_a_body_has_taken_over_stays(bench: Bench) -> None:
    task, message = sent(bench)
    bench.node.state.keys["redlock:k"].owner = "a body's"
    revoke(task, message, terminated=True)
    client_of(bench.elsewhere).inspect(("redlock:k",))
    assert bench.is_held("k")


@pytest.mark.parametrize(
    "header",
    [None, 7, "x", [], {}, {"lock": 3}, {"lock": {"keys": [], "owner": "x", "expires_at": 1}}],
)
def test_garbage_disturbs_nobody(bench: Bench, header: Any) -> None:
    task, _ = sent(bench)
    answers = [
        *signals.task_revoked.send(sender=task, request=Context({HEADER: header})),
        *signals.task_rejected.send(
            sender=Consumer(bench.app),
            message=SimpleNamespace(headers={HEADER: header}),
            exc=None,
        ),
        *signals.task_unknown.send(sender=None, message=None, exc=None, name="x", id="x"),
    ]
    assert [answer for _, answer in answers if isinstance(answer, Exception)] == []
    assert bench.is_held("k")


def test_an_app_that_cannot_lock_only_logs(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    _, message = sent(bench)
    reject_malformed(SimpleNamespace(app=SimpleNamespace(conf=None)), message)
    assert "(redlock:k) stays held until it expires" in caplog.text


@pytest.fixture
def consumer(bench: Bench) -> Iterator[SimpleNamespace]:
    """Of a worker that is told of revocations."""
    worker_state.reset_state()
    worker_state.revoked_stamps.clear()
    # A consumer of Celery's needs a broker that lasts; these are its attributes that count.
    consumer = SimpleNamespace(app=bench.app, on_decode_error=lambda message, exc: None)
    with mock.patch.dict(Panel.data):
        CleanupStep(consumer)
        yield consumer
    worker_state.reset_state()
    worker_state.revoked_stamps.clear()


def tell(consumer: Any, command: str, **arguments: Any) -> Any:
    """Give a worker a remote control command, as kombu does."""
    state = SimpleNamespace(app=consumer.app, consumer=consumer)
    return Panel.data[command](state, **arguments)


def test_a_revocation_frees_the_lock_of_a_message_in_protocol_1(
    bench: Bench, consumer: Any
) -> None:
    bench.app.conf.task_protocol = 1
    declare(bench).apply_async(())
    message = bench.take()
    body, headers, decoded, utc = proto1_to_proto2(message, message.payload)
    request = receive(
        Request(message, app=bench.app, body=body, headers=headers, decoded=decoded, utc=utc)
    )
    tell(consumer, "revoke", task_id=request.id)
    wait_free(bench)


def test_a_worker_that_is_told_of_a_revocation_has_nodes_forget_who_waits(
    bench: Bench, consumer: Any
) -> None:
    bench.elsewhere.acquire("k", ttl=60)
    task = bench.task(lambda: None, lock_key="k", lock_wait=0)
    assert bench.call(task).state == "RETRY"
    request = receive(Request(bench.take(), app=bench.app))
    queue = bench.node.state.waiting["redlock:k"]
    assert list(queue.scores) == [request.id]
    tell(consumer, "revoke", task_id=request.id)
    assert not queue.scores


def test_a_message_that_is_revoked_while_it_is_received_frees_its_lock(
    bench: Bench, consumer: Any
) -> None:
    request = called(bench)
    tell(consumer, "revoke", task_id=request.id)
    receive(request)
    wait_free(bench)


def test_a_message_with_a_stamp_that_was_revoked_earlier_frees_its_lock(
    bench: Bench, consumer: Any
) -> None:
    tell(consumer, "revoke_by_stamped_headers", headers={"batch": "7"})
    request = received(bench, stamped_headers=["batch"], batch="7")
    assert request.id not in worker_state.revoked
    wait_free(bench)


def test_garbage_in_one_revoked_message_keeps_no_other_from_freeing_its_lock(
    bench: Bench, consumer: Any
) -> None:
    request = received(bench)
    garbage = [SimpleNamespace(id=request.id, stamps=stamps) for stamps in ([], 7, {"a": 1})]
    for each in garbage:
        signals.task_received.send(sender=None, request=each)
    tell(consumer, "revoke", task_id=request.id)
    wait_free(bench)


@pytest.mark.parametrize("headers", [{"batch": "7"}, {"batch": ["6", "7"]}, ["batch=7"]])
@pytest.mark.parametrize("stamp", ["7", ["7", "8"]])
def test_a_revocation_by_stamps_frees_the_lock_at_once(
    bench: Bench, consumer: Any, headers: Any, stamp: Any
) -> None:
    request = received(bench, stamped_headers=["batch"], batch=stamp)
    assert request.stamps
    tell(consumer, "revoke_by_stamped_headers", headers=headers)
    wait_free(bench)


def test_a_revocation_by_other_stamps_frees_nothing(bench: Bench, consumer: Any) -> None:
    request = received(bench, stamped_headers=["batch"], batch="7")
    assert request.stamps
    tell(consumer, "revoke_by_stamped_headers", headers={"batch": "77", "other": "7"})
    assert bench.is_held("k")


def test_a_revocation_frees_nothing_of_a_message_in_a_pool_process(
    bench: Bench, consumer: Any
) -> None:
    request = received(bench)
    worker_state.task_reserved(request)
    worker_state.task_accepted(request)
    tell(consumer, "revoke", task_id=request.id)
    assert bench.is_held("k")


@pytest.mark.parametrize("ids", [None, []])
def test_a_revocation_of_nothing_is_answered_as_celery_does(
    bench: Bench, consumer: Any, ids: Any
) -> None:
    request = received(bench)
    assert "flagged as revoked" in tell(consumer, "revoke", task_id=ids)["ok"]
    assert request.id not in worker_state.revoked
    assert bench.is_held("k")


def test_it_frees_nothing_of_a_message_that_it_has_not_got(bench: Bench, consumer: Any) -> None:
    tell(consumer, "revoke", task_id=called(bench).id)
    assert bench.is_held("k")


def test_a_worker_listens_once_however_often_its_consumer_is_made(consumer: Any) -> None:
    listeners = dict(Panel.data)
    CleanupStep(consumer)
    assert Panel.data == listeners


def test_a_retry_that_was_dropped_before_it_got_the_lock_leaves_none(bench: Bench) -> None:
    def body(self: Any) -> None:
        self.retry(countdown=60, throw=False)
        revoke(self, bench.receive())

    bench.call(bench.task(body, bind=True, lock_key="k", lock_mode="until_executed"))
    wait_free(bench)


def test_a_retry_is_freed_also_where_its_mark_cannot_be_set(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = bench.task(retry_once, bind=True, lock_key="k", lock_mode="until_executed")
    bench.call(task)
    assert bench.is_held("k")
    fail = raising(QuorumUnavailable("no quorum"))
    monkeypatch.setattr("celery_redlock.tasks.message.withdrawal.withdraw", fail)
    revoke(task, bench.receive())
    wait_free(bench)
