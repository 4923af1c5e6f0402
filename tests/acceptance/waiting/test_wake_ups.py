"""A message that waits in a real worker starts when its key is released, before its ETA."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from celery import states

from celery_redlock import Lease
from celery_redlock.protocol.keys import wait_queue_key
from celery_redlock.testing import LocalCluster
from tests.acceptance.conftest import StartWorker
from tests.acceptance.matrix import row
from tests.acceptance.scene import Journal
from tests.acceptance.waiters import (
    LONG,
    LONGER_THAN_A_RESTART,
    assert_ran_early,
    send_waiter,
    wait_until_kept,
)
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

#: Seconds between two bodies of a task that may run 30 times a minute, less what a busy machine
#: delays the first. Without the limit there are hundredths of a second between them.
LIMITED = 1.0


@row("the lock is released while a message waits")
def test_a_release_starts_a_message_that_waits(
    worker: Worker, key: str, holder: Lease, journal: Journal
) -> None:
    waiter = send_waiter(worker, key)
    holder.release()
    assert_ran_early(journal, waiter.id)


@pytest.mark.parametrize("task", ["waiting.run_late", "waiting.run_fair"])
def test_so_it_does_whenever_its_task_is_acknowledged_and_in_whatever_order(
    worker: Worker, key: str, holder: Lease, journal: Journal, task: str
) -> None:
    waiter = send_waiter(worker, key, task)
    holder.release()
    assert_ran_early(journal, waiter.id)
    wait_until(lambda: worker.queue_is_empty, message="the message to be acknowledged")


def test_each_end_wakes_the_next(worker: Worker, key: str, holder: Lease, journal: Journal) -> None:
    waiters = [send_waiter(worker, key) for _ in range(4)]
    holder.release()
    journal.wait_for("ran", len(waiters))
    assert all(entry["early_by"] > 0 for entry in journal.of("ran"))


@pytest.mark.parametrize("task", ["waiting.run_late", "waiting.run_fair"])
def test_of_many_messages_none_waits_for_its_eta(
    worker: Worker, key: str, holder: Lease, journal: Journal, task: str
) -> None:
    waiters = [worker.send(task, key) for _ in range(30)]
    wait_until_kept(worker, waiters)
    holder.release()
    journal.wait_for("ran", len(waiters))
    assert all(entry["early_by"] > 0 for entry in journal.of("ran"))


def test_with_lock_fair_messages_run_in_the_order_in_which_they_began_to_wait(
    worker: Worker, key: str, holder: Lease, journal: Journal
) -> None:
    waiters = [send_waiter(worker, key, "waiting.run_fair") for _ in range(4)]
    holder.release()
    assert_ran_early(journal, *(waiter.id for waiter in waiters))


def test_another_is_woken_in_place_of_a_message_that_was_revoked(
    worker: Worker, key: str, holder: Lease, journal: Journal
) -> None:
    revoked, waiter = send_waiter(worker, key), send_waiter(worker, key)
    worker.app.control.revoke(
        revoked.id, destination=[worker.nodename], reply=True, timeout=TIMEOUT
    )
    holder.release()
    assert_ran_early(journal, waiter.id)
    wait_until(lambda: revoked.state == states.REVOKED, message="the other to end as revoked")


def test_a_message_that_was_revoked_ends_while_its_key_is_held(
    worker: Worker, key: str, holder: Lease
) -> None:
    waiter = send_waiter(worker, key)
    worker.app.control.revoke(waiter.id, destination=[worker.nodename], reply=True, timeout=TIMEOUT)
    wait_until(lambda: waiter.state == states.REVOKED, message="the message to end as revoked")
    assert holder.is_valid


def test_a_message_that_was_revoked_waits_for_no_key_any_more(
    worker: Worker, key: str, holder: Lease, cluster: LocalCluster
) -> None:
    def remembered() -> list[int]:
        queue = wait_queue_key(f"redlock:{key}")
        return [cast(int, cluster.client(node).zcard(queue)) for node in range(5)]

    waiter = send_waiter(worker, key)
    assert sum(remembered()) >= 3
    worker.app.control.revoke(waiter.id, destination=[worker.nodename], reply=True, timeout=TIMEOUT)
    wait_until(lambda: not any(remembered()), LONG, message=lambda: f"{remembered()}")
    assert holder.is_valid


def test_a_message_that_has_expired_does_not_run(
    worker: Worker, key: str, holder: Lease, journal: Journal
) -> None:
    expires = datetime.now(UTC) + timedelta(seconds=LONG)
    waiter = send_waiter(worker, key, left=0.0, expires=expires)
    wait_until(lambda: datetime.now(UTC) > expires, message="the message to expire")
    holder.release()
    wait_until(lambda: waiter.state == states.REVOKED, message="the message to end")
    assert journal.entries == []


def test_a_rate_limit_counts_for_messages_that_are_woken(
    worker: Worker, key: str, holder: Lease, journal: Journal
) -> None:
    for _ in range(2):
        send_waiter(worker, key, "waiting.run_limited")
    holder.release()
    second = journal.wait_for("ran", 2)
    (first, _) = journal.of("ran")
    assert second["at"] - first["at"] > LIMITED


def test_a_worker_that_consumes_no_more_starts_what_it_keeps(
    start_worker: StartWorker, key: str, holder: Lease, journal: Journal
) -> None:
    worker = start_worker().wait_until_ready()
    # The first node that is released wakes the message, and the others may be late. Without a wait
    # for them the message would go back to its queue, which this worker no longer consumes.
    waiter = send_waiter(worker, key, "waiting.run_patient")
    worker.app.control.cancel_consumer(
        worker.name, destination=[worker.nodename], reply=True, timeout=TIMEOUT
    )
    holder.release()
    assert_ran_early(journal, waiter.id)


@row("SIGTERM to a worker that holds waiting messages")
def test_a_warm_shutdown_gives_back_a_message_that_waits_and_the_next_worker_starts_it(
    pool: str, start_worker: StartWorker, key: str, holder: Lease, journal: Journal
) -> None:
    worker = start_worker(pool).wait_until_ready()
    waiter = send_waiter(worker, key, left=LONGER_THAN_A_RESTART)
    worker.signal(signal.SIGTERM)
    assert worker.wait_for_exit() == 0
    assert not worker.queue_is_empty
    holder.release()
    start_worker(pool, conf={"task_default_queue": worker.name})
    assert_ran_early(journal, waiter.id)


def test_another_worker_is_woken_where_one_has_died_with_the_message_that_was_first(
    start_worker: StartWorker, worker: Worker, key: str, holder: Lease, journal: Journal
) -> None:
    killed = start_worker().wait_until_ready()
    send_waiter(killed, key)
    waiter = send_waiter(worker, key)
    killed.signal(signal.SIGKILL)
    killed.wait_for_exit()
    holder.release()
    assert_ran_early(journal, waiter.id)
