"""What becomes of a publish whose key is taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import states

from celery_redlock import DuplicateTask, is_duplicate
from tests.acceptance.apps.unique_tasks import Refused
from tests.acceptance.conftest import PauseNodes
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until


def test_a_publish_that_shall_raise_tells_the_result_of_the_task_that_is_there(
    publisher: Publisher, journal: Journal
) -> None:
    first = publisher.send("unique.raise", journal.key)

    with pytest.raises(DuplicateTask) as raised:
        publisher.send("unique.raise", journal.key)

    journal.open()
    assert raised.value.result.id == first.id
    assert raised.value.result.get(timeout=TIMEOUT) == "held"
    assert len(journal.of("entered")) == 1


def test_a_function_is_asked_what_shall_become_of_a_duplicate(
    publisher: Publisher, journal: Journal
) -> None:
    publisher.send("unique.decide", journal.key)
    entered = journal.wait_for("entered")

    with pytest.raises(Refused) as raised:
        publisher.send("unique.decide", journal.key)

    assert raised.value.args == (journal.key, entered["owner"])


def test_a_publish_that_replaces_takes_the_lock_over_from_the_message_that_waits(
    keep_away: Callable[[], None],
    publisher: Publisher,
    worker: Worker,
    lock: Lock,
    journal: Journal,
) -> None:
    older = publisher.send("unique.replace", journal.key)
    assert f" {older.id} " in lock.wait_until_held()

    newer = publisher.send("unique.replace", journal.key)

    assert not is_duplicate(newer)
    assert f" {newer.id} " in (lock.owner or "")
    keep_away()
    journal.open()
    assert newer.get(timeout=TIMEOUT) == "held"
    wait_until(lambda: older.state == states.REVOKED, message="the older task to be revoked")
    assert [entry["id"] for entry in journal.of("entered")] == [newer.id]
    lock.wait_until_gone()
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")


def test_a_publish_that_replaces_leaves_a_running_task_alone_and_waits_for_it(
    publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    running = publisher.send("unique.replace", journal.key)
    journal.wait_for("entered")

    waiting = publisher.send("unique.replace", journal.key)

    assert not is_duplicate(waiting)
    wait_until(lambda: waiting.state == states.RETRY, message="the newer task to wait")
    assert f" running {running.id} " in (lock.owner or "")
    journal.open()
    assert [running.get(timeout=TIMEOUT), waiting.get(timeout=TIMEOUT)] == ["held", "held"]
    assert [entry["id"] for entry in journal.of("entered")] == [running.id, waiting.id]
    lock.wait_until_gone()


def test_without_a_quorum_a_task_is_published_without_a_lock_and_takes_it_on_arrival(
    keep_away: Callable[[], None],
    publisher: Publisher,
    lock: Lock,
    journal: Journal,
    pause_nodes: PauseNodes,
) -> None:
    resume = pause_nodes(0, 1, 2)
    result = publisher.send("unique.until_executed", journal.key)
    assert not is_duplicate(result)
    resume()

    keep_away()

    entered = journal.wait_for("entered")
    assert lock.owner == entered["owner"]
    assert is_duplicate(publisher.send("unique.until_executed", journal.key))
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()
