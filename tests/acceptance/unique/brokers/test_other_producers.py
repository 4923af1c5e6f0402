"""A task that was sent by somebody who knows nothing of locks takes its lock when it arrives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import states
from celery.result import AsyncResult

from celery_redlock import is_duplicate, is_skipped
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.brokers.producer import Producer
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

TASK = "unique.until_executed"


@pytest.fixture(params=["bare app", "by hand"])
def send(
    request: pytest.FixtureRequest, worker: Worker, producer: Producer, key: str
) -> Callable[[], AsyncResult]:
    """Send the task without a lock, and return its result."""
    if request.param == "bare app":
        return lambda: worker.send(TASK, key)
    return lambda: worker.app.AsyncResult(producer.send(TASK, key))


def test_a_message_without_a_lock_takes_it_on_arrival_and_stands_for_its_duplicates(
    send: Callable[[], AsyncResult], publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    result = send()

    entered = journal.wait_for("entered")
    assert (entered["id"], entered["owner"]) == (result.id, lock.owner)
    duplicate = publisher.send(TASK, journal.key)
    assert is_duplicate(duplicate)
    assert duplicate.id == result.id
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()


def test_of_two_messages_without_a_lock_the_one_that_comes_second_is_skipped(
    send: Callable[[], AsyncResult], worker: Worker, lock: Lock, journal: Journal
) -> None:
    first = send()
    journal.wait_for("entered")

    second = send()

    wait_until(lambda: second.state == states.SUCCESS, message="the second to be skipped")
    assert is_skipped(second.result)
    journal.open()
    assert first.get(timeout=TIMEOUT) == "held"
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")
    assert [entry["id"] for entry in journal.of("entered")] == [first.id]
    lock.wait_until_gone()


def test_a_message_without_a_lock_that_comes_after_the_end_runs(
    send: Callable[[], AsyncResult], lock: Lock, journal: Journal
) -> None:
    journal.open()
    assert send().get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()

    assert send().get(timeout=TIMEOUT) == "held"

    assert len(journal.of("entered")) == 2
    lock.wait_until_gone()
