"""What a worker's main process does with the lock of a message that never gets a body."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError
from celery import signals
from celery.app.task import Context
from celery.worker import state as worker_state
from celery.worker.control import Panel

from celery_redlock.errors import QuorumUnavailable
from celery_redlock.tasks.message.envelope import HEADER
from celery_redlock.tasks.publish.cleanup import free_at_revocation
from tests.support.tasks import Bench
from tests.support.waiting import wait_until


class Consumer:
    """Stands for the sender of signals about messages."""

    def __init__(self, app: Any) -> None:
        self.app = app


def sent(bench: Bench) -> tuple[Any, dict[str, Any]]:
    task = bench.task(lambda: None, lock_key="k", lock_mode="until_executed")
    message = bench.send(task)
    assert bench.is_held("k")
    return task, message


def wait_free(bench: Bench) -> None:
    wait_until(lambda: not bench.is_held("k"), message="the lock is still taken")


@pytest.mark.parametrize("expired", [True, False])
def test_a_message_that_is_revoked_or_expired_frees_its_lock(bench: Bench, expired: bool) -> None:
    task, message = sent(bench)
    signals.task_revoked.send(
        sender=task, request=Context(message), terminated=False, signum=None, expired=expired
    )
    wait_free(bench)


def test_a_message_of_an_unknown_task_frees_its_lock(bench: Bench) -> None:
    _, message = sent(bench)
    signals.task_unknown.send(
        sender=Consumer(bench.app),
        message=SimpleNamespace(headers=message),
        exc=KeyError("job"),
        name="job",
        id=message["id"],
    )
    wait_free(bench)


def test_a_malformed_message_frees_its_lock(bench: Bench) -> None:
    _, message = sent(bench)
    signals.task_rejected.send(
        sender=Consumer(bench.app), message=SimpleNamespace(headers=message), exc=None
    )
    wait_free(bench)


def test_a_message_whose_process_was_lost_before_its_body_began_frees_its_lock(
    bench: Bench,
) -> None:
    task, message = sent(bench)
    task.request_stack.push(Context(message))
    try:
        signals.task_failure.send(sender=task, task_id="x", exception=ValueError("a body's"))
        assert bench.is_held("k")
        signals.task_failure.send(sender=task, task_id="x", exception=WorkerLostError("SIGKILL"))
    finally:
        task.request_stack.pop()
    wait_free(bench)


def test_a_lock_that_a_body_has_taken_over_stays(bench: Bench) -> None:
    task, message = sent(bench)
    lock = bench.node.state.keys["redlock:k"]
    bench.node.state.keys["redlock:k"] = type(lock)("a body's", lock.expires_at)
    signals.task_revoked.send(sender=task, request=Context(message), terminated=True)
    bench.elsewhere.reservations.inspect(("redlock:k",))
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
    signals.task_rejected.send(
        sender=Consumer(SimpleNamespace(conf=None)),
        message=SimpleNamespace(headers=message),
        exc=None,
    )
    assert "(redlock:k) stays taken until it expires" in caplog.text


class Received:
    """Stands for a message that waits in this worker."""

    def __init__(self, app: Any, headers: dict[str, Any]) -> None:
        self.app, self.redlock = app, headers[HEADER]


@pytest.fixture
def told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a worker does that is told that tasks are revoked; gives the ids that Celery got."""
    heard: list[Any] = []
    monkeypatch.setitem(Panel.data, "revoke", lambda state, task_id, **_: heard.append(task_id))
    monkeypatch.setattr(worker_state, "requests", {})
    free_at_revocation()
    return heard


@pytest.mark.parametrize("as_list", [True, False])
def test_a_worker_that_is_told_of_a_revocation_frees_the_lock_at_once(
    bench: Bench, told: list[Any], as_list: bool
) -> None:
    _, message = sent(bench)
    task_id = message["id"]
    worker_state.requests[task_id] = Received(bench.app, message)
    Panel.data["revoke"](None, [task_id] if as_list else task_id, terminate=False)
    wait_free(bench)
    assert told == [[task_id] if as_list else task_id]


def test_it_frees_nothing_of_a_message_that_it_has_not_got(bench: Bench, told: list[Any]) -> None:
    _, message = sent(bench)
    Panel.data["revoke"](None, message["id"])
    assert bench.is_held("k")


def test_it_listens_once_however_often_it_is_asked_to(bench: Bench, told: list[Any]) -> None:
    listener = Panel.data["revoke"]
    free_at_revocation()
    assert Panel.data["revoke"] is listener


def test_a_retry_that_was_dropped_before_it_got_the_lock_leaves_none(bench: Bench) -> None:
    def body(self: Any) -> None:
        self.retry(countdown=60, throw=False)
        retry = Context(bench.receive())
        signals.task_revoked.send(
            sender=self, request=retry, terminated=False, signum=None, expired=False
        )

    task = bench.task(body, bind=True, lock_key="k", lock_mode="until_executed")
    bench.call(task)
    wait_free(bench)


def test_a_retry_is_freed_also_where_its_mark_cannot_be_set(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(self: Any) -> None:
        if not self.request.retries:
            raise self.retry(countdown=60)

    task = bench.task(body, bind=True, lock_key="k", lock_mode="until_executed")
    bench.call(task)
    retry = Context(bench.receive())
    assert bench.is_held("k")

    def fail(*args: Any, **kwargs: Any) -> None:
        raise QuorumUnavailable("no quorum")

    monkeypatch.setattr("celery_redlock.tasks.message.cancellation.withdraw", fail)
    signals.task_revoked.send(
        sender=task, request=retry, terminated=False, signum=None, expired=False
    )
    wait_free(bench)
