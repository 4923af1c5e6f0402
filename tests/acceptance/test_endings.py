"""However a body ends, its lock ends with it."""

from __future__ import annotations

import pytest

from tests.acceptance.matrix import row
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until


@row("success")
def test_a_task_holds_its_lock_in_the_body_and_gives_it_back_when_it_succeeds(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("hold", key)
    entered = journal.wait_for("entered")
    assert lock.owner == entered["owner"]

    journal.open()

    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()


@row("exception")
def test_a_task_that_raises_gives_the_lock_back(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("fail", key)
    journal.wait_for("entered")
    assert lock.is_held

    journal.open()

    with pytest.raises(ValueError, match="on purpose"):
        result.get(timeout=TIMEOUT)
    lock.wait_until_gone()


@row("Ignore")
def test_a_task_that_raises_ignore_gives_the_lock_back(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    worker.send("ignore", key)
    journal.wait_for("entered")
    assert lock.is_held

    journal.open()

    assert journal.wait_for("unwound")["by"] == "Ignore"
    lock.wait_until_gone()


@row("Reject")
def test_a_task_that_rejects_its_message_gives_the_lock_back(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    worker.send("reject", key)
    journal.wait_for("entered")
    assert lock.is_held

    journal.open()

    assert journal.wait_for("unwound")["by"] == "Reject"
    lock.wait_until_gone()
    wait_until(lambda: worker.queue_is_empty, message="the rejected message to be gone")


@row("Reject(requeue=True), acks_late")
def test_a_message_put_back_by_its_task_is_locked_anew_when_it_comes_again(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("put_back", key)
    first = journal.wait_for("entered")

    journal.open()

    second = journal.wait_for("entered", 2)
    assert (second["id"], second["retries"]) == (first["id"], first["retries"])
    assert second["owner"] != first["owner"]
    assert second["token"] > first["token"]
    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()


def assert_retried(worker: Worker, key: str, lock: Lock, journal: Journal, *, task: str) -> None:
    result = worker.send(task, key)
    first = journal.wait_for("entered")

    journal.open()

    second = journal.wait_for("entered", 2)
    assert (first["retries"], second["retries"]) == (0, 1)
    assert second["id"] == first["id"] == result.id
    assert second["owner"] != first["owner"]
    assert second["token"] > first["token"]
    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()


@row("self.retry")
def test_a_task_that_retries_gives_the_lock_back_and_takes_it_again(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    assert_retried(worker, key, lock, journal, task="retry")


@row("autoretry_for")
def test_a_task_that_is_retried_automatically_gives_the_lock_back_and_takes_it_again(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    assert_retried(worker, key, lock, journal, task="autoretry")


@row("self.replace")
def test_a_replacement_takes_the_lock_that_the_replaced_task_gave_back(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("replace", key)
    replaced = journal.wait_for("entered")

    journal.open()

    replacement = journal.wait_for("entered", 2)
    assert (replaced["task"], replacement["task"]) == ("replace", "hold")
    assert replacement["id"] == replaced["id"] == result.id
    assert replacement["token"] > replaced["token"]
    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()
