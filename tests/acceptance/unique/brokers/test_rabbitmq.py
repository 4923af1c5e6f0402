"""With RabbitMQ a unique task's lock ends as with Redis, and as only RabbitMQ can end it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import states
from kombu import Connection, Exchange, Queue

from celery_redlock import is_duplicate
from tests.acceptance.conftest import StartWorker
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.brokers.conftest import RABBITMQ
from tests.acceptance.unique.conftest import MakePublisher
from tests.acceptance.unique.crowd import Crowd, one_of_each_turn
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.parametrize("broker", [RABBITMQ], indirect=True)

TASK = "unique.until_executed"
TURNS = 5
EXPIRES = 1.0
# What the lock of an expired message may outlast it by, for clocks that differ.
SLACK = 3.0


def assert_runs_again(publisher: Publisher, worker: Worker, journal: Journal) -> None:
    following = publisher.send(TASK, journal.key)
    assert not is_duplicate(following)
    journal.open()
    assert following.get(timeout=TIMEOUT) == "held"
    assert journal.of("entered")[-1]["id"] == following.id
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")


@pytest.mark.parametrize("how", ["hold", "fail", "ignore", "reject", "retry_in_vain"])
def test_the_next_publish_runs_once_the_task_has_ended(
    how: str, publisher: Publisher, worker: Worker, lock: Lock, journal: Journal
) -> None:
    first = publisher.send(TASK, journal.key, how)
    journal.wait_for("entered")
    duplicate = publisher.send(TASK, journal.key)
    assert (is_duplicate(duplicate), duplicate.id) == (True, first.id)

    journal.open()

    journal.wait_for("left" if how == "hold" else "unwound", 2 if how == "retry_in_vain" else 1)
    lock.wait_until_gone()
    assert_runs_again(publisher, worker, journal)


@pytest.mark.parametrize("how", ["retry", "retry_at_once", "autoretry", "replace_by_itself"])
def test_the_lock_stays_with_a_task_that_goes_on(
    how: str, publisher: Publisher, worker: Worker, lock: Lock, journal: Journal
) -> None:
    result = publisher.send(TASK, journal.key, how)
    journal.wait_for("entered")

    journal.open("run-1")

    second = journal.wait_for("entered", 2)
    assert second["id"] == result.id
    assert second["token"] > journal.of("entered")[0]["token"]
    assert is_duplicate(publisher.send(TASK, journal.key))
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()
    assert len(journal.of("entered")) == 2
    assert_runs_again(publisher, worker, journal)


def test_a_message_put_back_by_its_task_takes_the_lock_over_again(
    publisher: Publisher, worker: Worker, lock: Lock, journal: Journal
) -> None:
    result = publisher.send(f"{TASK}.late", journal.key, "put_back")
    journal.wait_for("entered")

    journal.open("run-1")

    journal.wait_for("entered", 2)
    assert is_duplicate(publisher.send(f"{TASK}.late", journal.key))
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()
    assert len(journal.of("entered")) == 2
    assert_runs_again(publisher, worker, journal)


def test_a_task_revoked_before_its_start_frees_its_key(
    keep_away: Callable[[], None],
    publisher: Publisher,
    worker: Worker,
    lock: Lock,
    journal: Journal,
) -> None:
    result = publisher.send(TASK, journal.key)
    lock.wait_until_held()
    worker.app.control.revoke(result.id, destination=[worker.nodename], reply=True, timeout=TIMEOUT)

    keep_away()

    lock.wait_until_gone()
    assert result.state == states.REVOKED
    assert_runs_again(publisher, worker, journal)


def messages_in(url: str, queue: str) -> int:
    """Count the messages that wait, as the broker sees them."""
    with Connection(url) as connection:
        return int(connection.default_channel.queue_declare(queue, passive=True).message_count)


def test_the_key_of_a_message_that_the_broker_dropped_by_itself_is_free_soon_after(
    make_publisher: MakePublisher, urls: dict[str, str], key: str, lock: Lock
) -> None:
    publisher = make_publisher(key)
    publisher.send(TASK, key, expires=EXPIRES)
    assert is_duplicate(publisher.send(TASK, key))

    wait_until(lambda: messages_in(urls["broker"], key) == 0, message="the broker to drop it")

    wait_until(lambda: lock.is_gone, SLACK, message=lambda: f"gone: {lock.values}")
    assert not is_duplicate(publisher.send(TASK, key))


@pytest.fixture
def dead_letters(key: str, urls: dict[str, str]) -> Queue:
    """The queue behind an exchange for dead letters."""
    exchange = Exchange(f"{key}-dead", type="fanout", auto_delete=True)
    with Connection(urls["broker"]) as connection:
        queue = Queue(f"{key}-dead", exchange)(connection.default_channel)
        queue.declare()
    return queue


def test_a_message_that_is_rejected_on_conflict_goes_to_the_dead_letters(
    start_worker: StartWorker,
    make_publisher: MakePublisher,
    dead_letters: Queue,
    urls: dict[str, str],
    key: str,
    lock: Lock,
    journal: Journal,
) -> None:
    queue: dict[str, Any] = {
        "exchange": "",
        "routing_key": key,
        "queue_arguments": {"x-dead-letter-exchange": dead_letters.exchange.name},
    }
    settings = {"task_default_queue": key, "task_queues": {key: queue}}
    worker = start_worker(conf=settings).wait_until_ready()
    publisher = make_publisher(key, **settings)
    lock.occupy()

    result = publisher.send("unique.reject.late", key)

    with Connection(urls["broker"]) as connection:
        letters = dead_letters(connection.default_channel)
        letter = wait_until(letters.get, message=lambda: f"the dead letter: {worker.log_tail}")
        letter.ack()
    assert letter.headers["id"] == result.id
    assert letter.headers["x-death"][0]["reason"] == "rejected"
    assert journal.of("entered") == []
    lock.delete()
    journal.open()
    assert publisher.send("unique.reject.late", key).get(timeout=TIMEOUT) == "held"


def test_of_a_hundred_publishes_at_once_one_runs_and_the_others_point_at_it(
    crowd: Crowd, worker: Worker, publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    chosen = one_of_each_turn(TURNS, crowd, publisher, lock, journal)

    assert [entry["id"] for entry in journal.of("entered")] == chosen
    assert_runs_again(publisher, worker, journal)
