"""What a worker's main process does with the lock of a message that never gets a body."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError
from celery import signals
from celery.app.task import Context

from celery_redlock.tasks.messages.envelope import HEADER
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
    bench.elsewhere.look(("redlock:k",))
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
    assert "is left to end by itself (redlock:k)" in caplog.text
