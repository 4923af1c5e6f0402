"""Messages that wait for a key in a worker, for much longer than a test has patience."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from celery.result import AsyncResult

from celery_redlock.tasks.message.envelope import HEADER, Envelope, WaitHistory
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

INCLUDE = [
    "tests.acceptance.apps.plain",
    "tests.acceptance.apps.pausing",
    "tests.acceptance.apps.waiting",
]

#: Seconds that a message has left to wait when its key is released, so that it is seen to be early.
LONG = 5.0

#: The same, where one worker has to end and another one to start meanwhile.
LONGER_THAN_A_RESTART = 3 * LONG

#: A message that was requeued so often waits for up to `lock_ttl` the next time.
_REQUEUES = 6


def send_waiter(
    worker: Worker, key: str, task: str = "waiting.run", *, left: float = LONG, **options: Any
) -> AsyncResult:
    """
    Send a message whose key is held, and return when a worker keeps it for longer than that.

    The run that requeued it is over by then: before 5.7, Celery loses the result of a body that it
    has read half of when a warm shutdown begins, and waits for it for 30 seconds.
    """
    history = WaitHistory(first_seen=time.time(), requeues=_REQUEUES, retries=0)
    headers = {HEADER: Envelope(wait_history=history).write()}
    result = worker.send(task, key, headers=headers, **options)
    wait_until(
        lambda: _left(worker, result.id) > left and worker.bodies == [],
        2 * TIMEOUT,
        message="the message to wait for long",
    )
    return result


def assert_ran_early(journal: Journal, *task_ids: str) -> None:
    """Wait until these have run, in this order and each before its ETA."""
    journal.wait_for("ran", len(task_ids))
    ran = journal.of("ran")
    assert [entry["id"] for entry in ran] == list(task_ids)
    assert all(entry["early_by"] > 0 for entry in ran), ran


def wait_until_kept(worker: Worker, results: Sequence[AsyncResult]) -> None:
    """Wait until a worker keeps all of these messages until their ETAs."""
    wait_until(
        lambda: {result.id for result in results} <= kept(worker).keys(),
        2 * TIMEOUT,
        message="the messages to wait",
    )


def _left(worker: Worker, task_id: str) -> float:
    """Return for how many seconds a worker goes on keeping a message; 0 if it does not."""
    eta = kept(worker).get(task_id)
    return 0.0 if eta is None else (eta - datetime.now(UTC)).total_seconds()


def kept(worker: Worker) -> dict[str, datetime]:
    """Return the ETAs of the messages that a worker keeps."""
    told = worker.app.control.inspect([worker.nodename], limit=1, timeout=TIMEOUT).scheduled()
    entries = (told or {}).get(worker.nodename, [])
    return {entry["request"]["id"]: datetime.fromisoformat(entry["eta"]) for entry in entries}
