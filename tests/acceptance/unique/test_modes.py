"""From when to when each mode keeps a second publish from running."""

from __future__ import annotations

import pytest

from celery_redlock import is_duplicate, is_skipped
from tests.acceptance.apps.unique_tasks import MODES
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.conftest import MakePublisher
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until


@pytest.mark.parametrize("mode", MODES)
def test_a_publish_while_the_task_waits_in_its_queue_points_at_it(
    mode: str, make_publisher: MakePublisher, key: str, published: Lock
) -> None:
    publisher = make_publisher(key)  # a queue that nobody reads

    first, second = (publisher.send(f"unique.{mode}", key) for _ in range(2))

    assert (is_duplicate(first), is_duplicate(second)) == (False, True)
    assert second.id == first.id
    assert f" queued {first.id} " in (published.owner or "")


@pytest.mark.parametrize("mode", ["until_executed", "until_expired"])
def test_a_publish_while_the_body_runs_points_at_it(
    mode: str, publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    first = publisher.send(f"unique.{mode}", journal.key)
    entered = journal.wait_for("entered")

    second = publisher.send(f"unique.{mode}", journal.key)

    assert is_duplicate(second)
    assert second.id == first.id
    assert entered["token"] > 0
    assert lock.owner == entered["owner"]
    assert f" running {first.id} " in entered["owner"]
    journal.open()
    assert second.get(timeout=TIMEOUT) == "held"
    assert len(journal.of("entered")) == 1


def test_until_executing_lets_the_next_publish_run_as_soon_as_the_body_begins(
    publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    first = publisher.send("unique.until_executing", journal.key)
    entered = journal.wait_for("entered")
    assert (entered["owner"], entered["token"]) == (None, None)
    lock.wait_until_gone()

    second = publisher.send("unique.until_executing", journal.key)

    assert not is_duplicate(second)
    assert journal.wait_for("entered", 2)["id"] == second.id
    assert journal.of("left") == []  # both run at once
    journal.open()
    assert [first.get(timeout=TIMEOUT), second.get(timeout=TIMEOUT)] == ["held", "held"]
    lock.wait_until_gone()


def test_until_and_while_executing_lets_one_task_wait_while_another_runs(
    publisher: Publisher, lock: Lock, queued: Lock, journal: Journal
) -> None:
    first = publisher.send("unique.until_and_while_executing", journal.key)
    running = journal.wait_for("entered")
    assert lock.owner == running["owner"]
    queued.wait_until_gone()

    second, third = (
        publisher.send("unique.until_and_while_executing", journal.key) for _ in range(2)
    )

    assert not is_duplicate(second)
    assert is_duplicate(third)
    assert third.id == second.id != first.id
    journal.wait_for("delivered", 2)
    assert len(journal.of("entered")) == 1
    journal.open()
    assert [first.get(timeout=TIMEOUT), second.get(timeout=TIMEOUT)] == ["held", "held"]
    assert [entry["event"] for entry in journal.entries if entry["event"] != "delivered"] == [
        *("entered", "left"),
        *("entered", "left"),
    ]
    assert journal.of("entered")[1]["token"] > running["token"]
    lock.wait_until_gone()
    queued.wait_until_gone()


@pytest.mark.parametrize("mode", MODES)
def test_a_task_that_was_sent_by_its_name_alone_takes_the_lock_when_it_arrives(
    mode: str, worker: Worker, lock: Lock, queued: Lock, journal: Journal
) -> None:
    journal.open()

    result = worker.send(f"unique.{mode}", journal.key)

    assert result.get(timeout=TIMEOUT) == "held"
    entered = journal.wait_for("entered")
    assert (entered["token"] is None) == (mode == "until_executing")
    queued.wait_until_gone()
    if mode == "until_expired":
        # Said once the result is stored, not before.
        wait_until(
            lambda: f" finished {result.id} " in (lock.owner or ""),
            message=lambda: f"it to be finished: {lock.values}",
        )
    else:
        lock.wait_until_gone()


def test_of_two_tasks_that_were_sent_by_name_the_second_ends_as_a_skip(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    first = worker.send("unique.until_executed", key)
    journal.wait_for("entered")

    second = worker.send("unique.until_executed", key)

    assert is_skipped(second.get(timeout=TIMEOUT))
    journal.open()
    assert first.get(timeout=TIMEOUT) == "held"
    assert len(journal.of("entered")) == 1
    lock.wait_until_gone()
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")


def test_a_body_that_sends_its_own_task_gets_itself_and_does_not_wait_for_ever(
    publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    journal.open()

    result = publisher.send("unique.until_executed", journal.key, "send_itself")

    assert result.get(timeout=TIMEOUT) == [result.id, True]
    lock.wait_until_gone()
    assert len(journal.of("entered")) == 1
