"""A task that goes on in a second message takes its lock along, under a fresh token."""

from __future__ import annotations

import pytest
from celery import states
from celery.result import AsyncResult

from celery_redlock import is_duplicate
from tests.acceptance.apps.unique_tasks import BRIEF_WINDOW, BRIEFLY, MODES
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

CONTINUATIONS = [
    "retry",
    "retry_at_once",
    "retry_quietly",
    "autoretry",
    "replace_by_itself",
    "put_back",
]
RETRIES = ["retry", "retry_at_once", "retry_quietly", "autoretry"]


def name_of(mode: str, how: str) -> str:
    # A message that was acknowledged before the body began cannot be put back.
    return f"unique.{mode}.late" if how == "put_back" else f"unique.{mode}"


def wait_for_result(result: AsyncResult, how: str) -> None:
    # Celery's Redis backend keeps the first success.
    expected = "not raised" if how == "retry_quietly" else "held"
    wait_until(
        lambda: result.state == states.SUCCESS and result.result == expected,
        message=lambda: f"the result {expected!r}: {result.state} {result.result}",
    )


def assert_next_publish_runs(publisher: Publisher, journal: Journal, task: str) -> None:
    following = publisher.send(task, journal.key)
    assert not is_duplicate(following)
    assert following.get(timeout=TIMEOUT) == "held"
    assert [entry["id"] for entry in journal.of("entered")][2:] == [following.id]


@pytest.mark.parametrize("how", CONTINUATIONS)
def test_the_lock_stays_with_the_task_from_its_first_run_to_the_end_of_its_second(
    how: str, worker: Worker, publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    name = name_of("until_executed", how)
    result = publisher.send(name, journal.key, how)
    first = journal.wait_for("entered")

    journal.open("run-1")

    journal.wait_for("left" if how == "retry_quietly" else "unwound")
    between = publisher.send(name, journal.key)
    second = journal.wait_for("entered", 2)
    during = publisher.send(name, journal.key)
    assert [is_duplicate(between), is_duplicate(during)] == [True, True]
    assert between.id == during.id == result.id
    assert second["id"] == first["id"] == result.id
    assert second["retries"] == (1 if how in RETRIES else 0)
    assert lock.owner == second["owner"] != first["owner"]
    assert second["token"] > first["token"]
    journal.open()
    journal.wait_for("left", 2 if how == "retry_quietly" else 1)
    lock.wait_until_gone()
    wait_for_result(result, how)
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")
    assert_next_publish_runs(publisher, journal, name)


@pytest.mark.parametrize("how", CONTINUATIONS)
@pytest.mark.parametrize("mode", ["until_executing", "until_and_while_executing"])
def test_a_task_that_goes_on_runs_twice_and_leaves_no_lock(
    mode: str, how: str, publisher: Publisher, lock: Lock, queued: Lock, journal: Journal
) -> None:
    name = name_of(mode, how)
    result = publisher.send(name, journal.key, how)
    first = journal.wait_for("entered")

    journal.open()

    second = journal.wait_for("entered", 2)
    journal.wait_for("left", 2 if how == "retry_quietly" else 1)
    assert second["id"] == first["id"] == result.id
    assert mode == "until_executing" or second["token"] > first["token"]
    # Celery stores RETRY once the retry is sent, and nothing keeps that one from ending before.
    if how != "retry_at_once":
        wait_for_result(result, how)
    lock.wait_until_gone()
    queued.wait_until_gone()
    assert_next_publish_runs(publisher, journal, name)


@pytest.mark.parametrize("how", ["retry", "replace_by_itself", "put_back"])
def test_the_window_of_until_expired_is_not_begun_anew_by_what_goes_on(
    how: str, publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    name = name_of(BRIEFLY, how)
    journal.open()

    result = publisher.send(name, journal.key, how)

    journal.wait_for("entered", 2)
    journal.wait_for("left")
    again = publisher.send(name, journal.key)
    assert is_duplicate(again)
    assert again.id == result.id
    wait_until(lambda: f" finished {result.id} " in (lock.owner or ""), message="it to finish")
    # A quorum says so; the others a little later.
    wait_until(lambda: lock.expires_in <= BRIEF_WINDOW, BRIEF_WINDOW)
    lock.wait_until_gone()
    assert_next_publish_runs(publisher, journal, name)


@pytest.mark.parametrize("mode", MODES)
def test_a_task_replaced_by_another_one_leaves_its_lock_behind_for_the_next_publish(
    mode: str, publisher: Publisher, lock: Lock, queued: Lock, journal: Journal
) -> None:
    result = publisher.send(f"unique.{mode}", journal.key, "replace_by_another")
    journal.wait_for("entered")

    journal.open("run-1")

    replacement = journal.wait_for("entered", 2)
    assert (replacement["id"], replacement["task"]) == (result.id, "unique.plain")
    if mode != "until_expired":
        lock.wait_until_gone()
        queued.wait_until_gone()
        following = publisher.send(f"unique.{mode}", journal.key)
        assert not is_duplicate(following)
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
