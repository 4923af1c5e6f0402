"""With RabbitMQ a message that waits is woken as with Redis, also where it was given back."""

from __future__ import annotations

import signal

import pytest

from celery_redlock import Lease
from tests.acceptance.conftest import StartWorker
from tests.acceptance.scene import Journal
from tests.acceptance.unique.brokers.conftest import RABBITMQ
from tests.acceptance.waiters import INCLUDE, LONGER_THAN_A_RESTART, assert_ran_early, send_waiter

pytestmark = pytest.mark.parametrize("broker", [RABBITMQ], indirect=True)


def test_a_release_starts_a_message_that_waits(
    start_worker: StartWorker, key: str, holder: Lease, journal: Journal
) -> None:
    worker = start_worker(conf={"include": INCLUDE}).wait_until_ready()
    waiter = send_waiter(worker, key)
    holder.release()
    assert_ran_early(journal, waiter.id)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_message_that_its_worker_has_given_back_is_woken_in_the_next(
    start_worker: StartWorker, key: str, holder: Lease, journal: Journal, number: signal.Signals
) -> None:
    worker = start_worker(conf={"include": INCLUDE}).wait_until_ready()
    waiter = send_waiter(worker, key, left=LONGER_THAN_A_RESTART)
    worker.signal(number)
    worker.wait_for_exit()
    following = start_worker(conf={"include": INCLUDE, "task_default_queue": worker.name})
    following.wait_for_log(f"[{waiter.id}] received")
    holder.release()
    assert_ran_early(journal, waiter.id)
