"""A message that waits in a busy worker runs in another one of its queue that is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_redlock import Lease
from celery_redlock.tasks.message.envelope import HEADER, Envelope, WaitHistory
from tests.acceptance.conftest import StartWorker
from tests.acceptance.scene import Journal
from tests.acceptance.waiters import LONG, kept, send_waiter, wait_until_kept
from tests.acceptance.worker import Worker
from tests.support.waiting import wait_until

#: With bodies that are acknowledged late, a worker fetches no more than it has processes for.
LONG_BODIES = {"worker_prefetch_multiplier": 1}
ONE_PROCESS = ("--concurrency=1",)


@pytest.fixture
def busy_journal(key: str, urls: dict[str, str]) -> Any:
    """The journal of the body that keeps a worker busy until the end of the test."""
    journal = Journal(f"{key}-busy", urls["journal"])
    yield journal
    journal.open()
    journal.close()


@pytest.fixture
def busy(pool: str, start_worker: StartWorker) -> Worker:
    """A worker of one process, which `occupy` makes busy."""
    return start_worker(pool, conf=LONG_BODIES, options=ONE_PROCESS).wait_until_ready()


@pytest.fixture
def occupy(busy: Worker, busy_journal: Journal) -> Callable[[], None]:
    """Have the worker's only process run a body until the end of the test."""

    def occupy() -> None:
        busy.send("hold_nothing_late", busy_journal.key)
        busy_journal.wait_for("entered")

    return occupy


@pytest.fixture
def assert_runs_elsewhere(
    pool: str,
    busy: Worker,
    busy_journal: Journal,
    start_worker: StartWorker,
    holder: Lease,
    journal: Journal,
) -> Callable[[AsyncResult], None]:
    """Release the key, and wait until a message has run in another worker of the same queue."""

    def assert_runs_elsewhere(waiter: AsyncResult) -> None:
        conf = {**LONG_BODIES, "task_default_queue": busy.name}
        start_worker(pool, conf=conf, options=ONE_PROCESS).wait_until_ready()
        holder.release()
        assert journal.wait_for("ran")["id"] == waiter.id
        assert not busy_journal.of("left")

    return assert_runs_elsewhere


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_message_that_is_woken_in_a_busy_worker_starts_in_another_one(
    busy: Worker,
    occupy: Callable[[], None],
    assert_runs_elsewhere: Callable[[AsyncResult], None],
    key: str,
) -> None:
    waiter = send_waiter(busy, key)
    occupy()
    assert_runs_elsewhere(waiter)
    assert waiter.id not in kept(busy)


def test_a_message_whose_eta_comes_in_a_busy_worker_starts_in_another_one(
    busy: Worker,
    occupy: Callable[[], None],
    assert_runs_elsewhere: Callable[[AsyncResult], None],
    key: str,
) -> None:
    history = WaitHistory(first_seen=time.time(), requeues=1, retries=0)
    envelope = Envelope(wait_history=history, waits_for=(f"redlock:{key}",))
    waiter = busy.send("waiting.run", key, headers={HEADER: envelope.write()}, countdown=LONG)
    wait_until_kept(busy, [waiter])
    occupy()
    wait_until(lambda: waiter.id not in kept(busy), message="its ETA to come")
    assert_runs_elsewhere(waiter)
