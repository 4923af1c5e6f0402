"""A process is killed that has taken the lock over from a message."""

from __future__ import annotations

import os
import signal
from typing import Any

import celery
import pytest
from celery.exceptions import WorkerLostError

from celery_redlock import is_duplicate
from tests.acceptance.apps.unique_tasks import MODES, SHORT_TTL
from tests.acceptance.conftest import StartWorker
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.conftest import MakePublisher
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

# The lock of a killed holder ends with its TTL. The rest is for a busy machine.
FREE_AFTER = SHORT_TTL + 10
# What the body holds in these modes is not what the next publish needs.
FREE_IN_THE_BODY = ("until_executing", "until_and_while_executing")


def kill(entry: dict[str, Any]) -> None:
    os.kill(entry["pid"], signal.SIGKILL)


def assert_next_publish_runs(
    mode: str, name: str, publisher: Publisher, journal: Journal, runs: int
) -> None:
    """It is accepted in the time that the mode allows, and its body runs."""
    within = 0 if mode in FREE_IN_THE_BODY else FREE_AFTER
    following = publisher.send(name, journal.key)
    if is_duplicate(following):
        following = wait_until(
            lambda: accepted(publisher, name, journal.key), within, message="a publish to be taken"
        )
    assert following.get(timeout=TIMEOUT) == "held"
    assert [entry["id"] for entry in journal.of("entered")][runs:] == [following.id]


def wait_until_finished(mode: str, lock: Lock) -> None:
    """Wait until the key is free, or only stays taken for the rest of the window."""
    if mode == "until_expired":
        wait_until(lambda: " finished " in (lock.owner or ""), message="the task to be finished")
    else:
        lock.wait_until_gone()


def accepted(publisher: Publisher, name: str, key: str) -> Any:
    result = publisher.send(name, key)
    return None if is_duplicate(result) else result


@pytest.mark.skipif(
    celery.VERSION[:2] < (5, 5), reason="this Celery does not tell which message's process was lost"
)
@pytest.mark.parametrize("mode", MODES)
def test_a_task_killed_before_it_took_the_lock_over_frees_the_key(
    mode: str, publisher: Publisher, published: Lock, journal: Journal
) -> None:
    name = f"unique.{mode}.held_back"
    killed = publisher.send(name, journal.key)
    begun = journal.wait_for("begun")
    assert f" queued {killed.id} " in (published.owner or "")

    kill(begun)

    published.wait_until_gone()
    following = publisher.send(name, journal.key)
    assert not is_duplicate(following)
    journal.open()
    assert following.get(timeout=TIMEOUT) == "held"
    assert [entry["id"] for entry in journal.of("entered")] == [following.id]


@pytest.mark.parametrize("mode", MODES)
def test_a_message_whose_task_was_killed_before_it_took_the_lock_over_comes_again_and_runs_once(
    mode: str, worker: Worker, publisher: Publisher, published: Lock, journal: Journal
) -> None:
    result = publisher.send(f"unique.{mode}.late.held_back", journal.key)
    begun = journal.wait_for("begun")

    kill(begun)

    assert journal.wait_for("begun", 2)["pid"] != begun["pid"]
    assert is_duplicate(publisher.send(f"unique.{mode}.late.held_back", journal.key))
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    assert [entry["id"] for entry in journal.of("entered")] == [result.id]
    wait_until_finished(mode, published)
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")


@pytest.mark.parametrize("mode", FREE_IN_THE_BODY)
def test_a_task_killed_after_it_took_the_lock_over_and_before_it_gave_it_up_frees_it_with_the_ttl(
    mode: str,
    start_worker: StartWorker,
    conf: dict[str, Any],
    make_publisher: MakePublisher,
    published: Lock,
    journal: Journal,
) -> None:
    modules = [*conf["include"], "tests.acceptance.apps.unique_slow"]
    slow = start_worker(conf={"include": modules}).wait_until_ready()
    publisher = make_publisher(slow.name)
    killed = publisher.send(f"unique.{mode}.short", journal.key)
    adopted = journal.wait_for("adopted")
    assert f" running {killed.id} " in (published.owner or "")

    kill(adopted)

    with pytest.raises(WorkerLostError):
        killed.get(timeout=TIMEOUT)
    journal.open()
    following = wait_until(
        lambda: accepted(publisher, f"unique.{mode}.short", journal.key),
        FREE_AFTER,
        message="a publish to be taken",
    )
    assert following.get(timeout=TIMEOUT) == "held"


@pytest.mark.parametrize("mode", MODES)
def test_a_task_killed_after_it_took_the_lock_and_before_its_body_frees_the_key_with_the_ttl(
    mode: str, publisher: Publisher, lock: Lock, queued: Lock, journal: Journal
) -> None:
    killed = publisher.send(f"unique.{mode}.held_up", journal.key)
    adopted = journal.wait_for("adopted")
    assert mode == "until_executing" or f" running {killed.id} " in (lock.owner or "")

    kill(adopted)

    with pytest.raises(WorkerLostError):
        killed.get(timeout=TIMEOUT)
    journal.open("body")
    journal.open()
    assert_next_publish_runs(mode, f"unique.{mode}.held_up", publisher, journal, runs=0)


@pytest.mark.parametrize("mode", MODES)
def test_a_message_whose_task_was_killed_before_its_body_comes_again_and_runs_once(
    mode: str, worker: Worker, publisher: Publisher, lock: Lock, queued: Lock, journal: Journal
) -> None:
    result = publisher.send(f"unique.{mode}.late.held_up", journal.key)
    adopted = journal.wait_for("adopted")

    kill(adopted)

    assert journal.wait_for("adopted", 2)["pid"] != adopted["pid"]
    journal.open("body")
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    assert [entry["id"] for entry in journal.of("entered")] == [result.id]
    queued.wait_until_gone()
    wait_until_finished(mode, lock)
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")


@pytest.mark.parametrize("mode", MODES)
def test_a_task_killed_in_its_body_frees_the_key_with_the_ttl(
    mode: str, publisher: Publisher, journal: Journal
) -> None:
    killed = publisher.send(f"unique.{mode}.short", journal.key)
    entered = journal.wait_for("entered")

    kill(entered)

    with pytest.raises(WorkerLostError):
        killed.get(timeout=TIMEOUT)
    journal.open()
    assert_next_publish_runs(mode, f"unique.{mode}.short", publisher, journal, runs=1)


@pytest.mark.parametrize("mode", MODES)
def test_a_message_whose_task_was_killed_in_its_body_comes_again_and_runs(
    mode: str, worker: Worker, publisher: Publisher, lock: Lock, queued: Lock, journal: Journal
) -> None:
    result = publisher.send(f"unique.{mode}.late.short", journal.key)
    first = journal.wait_for("entered")

    kill(first)

    second = journal.wait_for("entered", 2)
    assert second["id"] == first["id"] == result.id
    assert mode == "until_executing" or second["token"] > first["token"]
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    assert len(journal.of("entered")) == 2
    queued.wait_until_gone()
    wait_until_finished(mode, lock)
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")


@pytest.mark.parametrize("mode", MODES)
def test_a_task_that_is_revoked_while_it_runs_frees_its_key(
    mode: str, worker: Worker, publisher: Publisher, lock: Lock, queued: Lock, journal: Journal
) -> None:
    result = publisher.send(f"unique.{mode}", journal.key)
    journal.wait_for("entered")

    worker.revoke(result)

    journal.wait_for("unwound")
    lock.wait_until_gone()
    queued.wait_until_gone()
    journal.open()
    assert_next_publish_runs(mode, f"unique.{mode}", publisher, journal, runs=1)
