"""A worker that is told to stop, or just killed, while it holds a lock."""

from __future__ import annotations

import signal

import celery
import pytest

from tests.acceptance.conftest import StartWorker
from tests.acceptance.matrix import row
from tests.acceptance.scene import Journal, Lock, assert_next_waits_it_out
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT

needs_soft_shutdown = pytest.mark.skipif(
    celery.VERSION[:2] < (5, 5), reason="soft shutdown came with Celery 5.5"
)


@row("SIGTERM to the worker (warm shutdown)")
def test_a_lock_is_renewed_through_a_warm_shutdown_and_given_back_after_the_body(
    pool: str, start_worker: StartWorker, key: str, lock: Lock, journal: Journal
) -> None:
    worker = start_worker(pool).wait_until_ready()
    result = worker.send("hold_renewed", key)
    entered = journal.wait_for("entered")

    worker.signal(signal.SIGTERM)

    worker.wait_for_log("Warm shutdown")
    lock.wait_for_renewals(3)
    assert lock.owner == entered["owner"]
    journal.open()
    assert worker.wait_for_exit() == 0
    lock.wait_until_gone()
    assert result.get(timeout=TIMEOUT) == "held"


@needs_soft_shutdown
@row("SIGQUIT to the worker with worker_soft_shutdown_timeout (soft shutdown)")
def test_a_lock_is_renewed_through_a_soft_shutdown_and_given_back_after_the_body(
    pool: str, start_worker: StartWorker, key: str, lock: Lock, journal: Journal
) -> None:
    worker = start_worker(pool, conf={"worker_soft_shutdown_timeout": 10}).wait_until_ready()
    worker.send("hold_renewed", key)
    entered = journal.wait_for("entered")

    worker.signal(signal.SIGQUIT)

    worker.wait_for_log("Initiating Soft Shutdown")
    lock.wait_for_renewals(1)
    assert lock.owner == entered["owner"]
    journal.open()
    lock.wait_until_gone()
    journal.wait_for("left")
    worker.wait_for_exit()


@row("SIGQUIT to the worker (cold shutdown)")
def test_a_lock_is_free_again_after_a_cold_shutdown(
    pool: str, start_worker: StartWorker, key: str, lock: Lock, journal: Journal
) -> None:
    worker = start_worker(pool).wait_until_ready()
    worker.send("hold_shortly", key)
    journal.wait_for("entered")

    worker.signal(signal.SIGQUIT)
    if pool == "solo" and celery.VERSION[:2] < (5, 5):
        worker.wait_for_log("Cold shutdown")
        journal.open()  # there the signal only leaves a note, which is read after the body

    worker.wait_for_exit()
    lock.wait_until_gone()


@needs_soft_shutdown
@row("SIGQUIT to the worker (cold shutdown) with acks_late")
@pytest.mark.parametrize("task", ["hold_nothing_late", "hold_late"])
def test_the_message_of_a_task_that_a_cold_shutdown_ends_is_left_to_the_next_worker(
    pool: str, start_worker: StartWorker, key: str, journal: Journal, task: str
) -> None:
    worker = start_worker(pool).wait_until_ready()
    worker.send(task, key)
    journal.wait_for("entered")

    worker.signal(signal.SIGQUIT)

    worker.wait_for_exit()
    assert not worker.queue_is_empty


@pytest.mark.full
@needs_soft_shutdown
@pytest.mark.parametrize("task", ["hold_nothing_late", "hold_late"])
def test_celery_acknowledges_what_a_cold_shutdown_ends_under_gevent_with_a_lock_or_without(
    start_worker: StartWorker, key: str, journal: Journal, task: str
) -> None:
    worker = start_worker("gevent").wait_until_ready()
    worker.send(task, key)
    journal.wait_for("entered")

    worker.signal(signal.SIGQUIT)

    assert journal.wait_for("unwound")["by"] == "GreenletExit"
    worker.wait_for_exit()
    assert worker.queue_is_empty


def test_a_body_that_unwinds_in_a_cold_shutdown_gives_the_lock_back(
    start_worker: StartWorker, key: str, lock: Lock, journal: Journal
) -> None:
    worker = start_worker("prefork").wait_until_ready()
    worker.send("hold", key)
    journal.wait_for("entered")

    worker.signal(signal.SIGQUIT)

    assert journal.wait_for("unwound")["by"] == "SystemExit"
    lock.wait_until_gone()
    worker.wait_for_exit()


@pytest.mark.full
def test_a_thread_that_a_cold_shutdown_cannot_end_keeps_its_lock_to_the_end_of_the_body(
    start_worker: StartWorker, key: str, lock: Lock, journal: Journal
) -> None:
    worker = start_worker("threads").wait_until_ready()
    worker.send("hold_renewed", key)
    entered = journal.wait_for("entered")

    worker.signal(signal.SIGQUIT)

    lock.wait_for_renewals(3)
    assert lock.owner == entered["owner"]
    journal.open()
    worker.wait_for_exit()
    assert journal.of("left")
    lock.wait_until_gone()


@row("SIGKILL of the whole worker")
def test_a_lock_outlives_a_killed_worker_by_its_ttl_and_the_next_task_waits_it_out(
    pool: str, worker: Worker, start_worker: StartWorker, key: str, lock: Lock, journal: Journal
) -> None:
    killed = start_worker(pool).wait_until_ready()
    killed.send("hold_shortly", key)
    journal.wait_for("entered")

    killed.signal(signal.SIGKILL)

    killed.wait_for_exit()
    assert_next_waits_it_out(worker, key, lock, journal)
