"""Who holds a task's key, and how its owner frees it by hand."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any

import pytest

from celery_redlock import is_duplicate
from celery_redlock.errors import QuorumUnavailable
from tests.acceptance.apps.unique_tasks import MODES
from tests.acceptance.conftest import PauseNodes
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.conftest import MakePublisher
from tests.acceptance.unique.publisher import Publisher
from tests.support.waiting import TIMEOUT, wait_until

FREE_IN_THE_BODY = "until_executing"


def test_nobody_holds_the_key_of_a_task_that_was_not_sent(
    make_publisher: MakePublisher, key: str
) -> None:
    task = make_publisher(key).task("unique.until_executed")

    assert task.lock_holder(key) is None
    assert task.release_lock(key) is False


def told(task: Any, key: str) -> Any:
    """Ask who holds a key; a process that has just begun may have reached only a stopped node."""
    with contextlib.suppress(QuorumUnavailable):
        return task.lock_holder(key)
    return None


def reaches_all_nodes(publisher: Publisher, mode: str, key: str, published: Lock) -> bool:
    """A process that has just begun takes its first locks on the nodes that it reached first."""
    publisher.send(f"unique.{mode}", key)
    reached = None not in published.values
    publisher.task(f"unique.{mode}").release_lock(key)
    published.wait_until_gone()
    return reached


@pytest.mark.parametrize("nodes_down", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_the_holder_of_a_queued_task_s_key_is_told_and_can_be_made_to_give_it_up(
    mode: str,
    nodes_down: int,
    make_publisher: MakePublisher,
    key: str,
    published: Lock,
    pause_nodes: PauseNodes,
) -> None:
    publisher = make_publisher(key)  # a queue that nobody reads
    task = publisher.task(f"unique.{mode}")
    wait_until(lambda: reaches_all_nodes(publisher, mode, key, published), message="all nodes")
    before = dt.datetime.now(dt.UTC)
    result = publisher.send(f"unique.{mode}", key)
    resume = pause_nodes(*range(nodes_down))

    holder = task.lock_holder(key)

    assert (holder.task_id, holder.state) == (result.id, "queued")
    assert before <= holder.since <= dt.datetime.now(dt.UTC)
    assert holder.expires_in > 0
    assert task.release_lock(key) is True
    assert task.lock_holder(key) is None
    assert not is_duplicate(publisher.send(f"unique.{mode}", key))
    resume()


@pytest.mark.parametrize("nodes_down", [0, 1])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != FREE_IN_THE_BODY])
def test_the_holder_of_a_running_task_s_key_is_told_with_its_token(
    mode: str,
    nodes_down: int,
    publisher: Publisher,
    journal: Journal,
    lock: Lock,
    pause_nodes: PauseNodes,
) -> None:
    task = publisher.task(f"unique.{mode}")
    result = publisher.send(f"unique.{mode}", journal.key)
    entered = journal.wait_for("entered")
    wait_until(
        lambda: lock.values[nodes_down:].count(entered["owner"]) >= lock.quorum,
        message=lambda: f"a quorum of those that stay up: {lock.values}",
    )
    resume = pause_nodes(*range(nodes_down))

    holder = wait_until(lambda: told(task, journal.key))

    assert (holder.task_id, holder.state) == (result.id, "running")
    assert (holder.token, holder.owner) == (entered["token"], entered["owner"])
    assert (holder.host, holder.pid) == (entered["host"], entered["pid"])
    resume()
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"


def test_the_key_of_a_running_task_can_be_taken_from_it_by_hand(
    publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    task = publisher.task("unique.until_executed")
    first = publisher.send("unique.until_executed", journal.key)
    journal.wait_for("entered")

    assert task.release_lock(journal.key) is True

    second = publisher.send("unique.until_executed", journal.key)
    assert not is_duplicate(second)
    journal.open()
    assert second.get(timeout=TIMEOUT) == "held"
    assert journal.of("entered")[-1]["id"] == second.id != first.id
    assert journal.of("entered")[-1]["token"] > journal.of("entered")[0]["token"]
    lock.wait_until_gone()


def test_the_key_is_told_to_be_that_of_a_finished_task_until_its_window_ends(
    publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    task = publisher.task("unique.until_expired")
    journal.open()
    result = publisher.send("unique.until_expired", journal.key)
    wait_until(lambda: " finished " in (lock.owner or ""), message="the task to finish")

    holder = task.lock_holder(journal.key)

    assert (holder.task_id, holder.state) == (result.id, "finished")
    assert task.release_lock(journal.key) is True
    assert not is_duplicate(publisher.send("unique.until_expired", journal.key))


def test_of_a_task_that_runs_and_one_that_waits_the_one_that_runs_is_told_and_both_keys_are_freed(
    publisher: Publisher, lock: Lock, queued: Lock, journal: Journal
) -> None:
    name = "unique.until_and_while_executing"
    running = publisher.send(name, journal.key)
    journal.wait_for("entered")
    waiting = publisher.send(name, journal.key)
    assert not is_duplicate(waiting)
    assert publisher.task(name).lock_holder(journal.key).task_id == running.id

    assert publisher.task(name).release_lock(journal.key) is True

    assert f" {running.id} " not in (lock.owner or "")
    # Its message may have come to a worker meanwhile, which takes the key anew.
    assert f" queued {waiting.id} " not in (queued.owner or "")
    journal.open()
    assert waiting.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()
    queued.wait_until_gone()
