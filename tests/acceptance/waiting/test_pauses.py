"""While a key is paused, real workers begin no body; when the pause ends, its messages run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redlock import Redlock, RedlockTask
from celery_redlock.testing import LocalCluster
from tests.acceptance.apps.visible import instant
from tests.acceptance.scene import Journal
from tests.acceptance.waiters import wait_until_kept
from tests.acceptance.worker import Worker

TASKS = ["pausing.run", "pausing.skipping", "pausing.unique", "pausing.rated"]
#: Seconds; a pause that a test ends, and one that ends by itself.
LONG, SHORT = 600.0, 3.0
#: Seconds after the end of a pause until its messages are due.
SPREAD = 1.0


@pytest.fixture
def redlock(cluster: LocalCluster, key: str) -> Iterator[Redlock]:
    """A client of the workers' nodes; at the end the key is not paused."""
    with Redlock(cluster.urls, node_timeout=1.0) as redlock:
        yield redlock
        redlock.resume(key)


@pytest.fixture
def unique(worker: Worker, cluster: LocalCluster, urls: dict[str, str]) -> Iterator[Any]:
    """The unique task in a program that sends it, and locks its calls."""
    app = Celery(broker=urls["broker"], backend=urls["backend"], set_as_current=False)
    app.conf.update(redlock_nodes=list(cluster.urls), task_default_queue=worker.name)
    options = {"base": RedlockTask, "lock_key": "{key}", "lock_mode": "until_executed"}

    @app.task(name="pausing.unique", shared=False, **options)
    def unique(key: str) -> None:
        """Run in the worker."""

    yield unique
    app.close()


@pytest.mark.parametrize("task", TASKS)
def test_a_body_begins_when_the_pause_is_over_after_one_requeue(
    worker: Worker, key: str, redlock: Redlock, journal: Journal, task: str
) -> None:
    began = instant()
    redlock.pause(key, SHORT)
    worker.send(task, key)
    ran = journal.wait_for("ran")
    assert ran["at"] >= began + SHORT
    (requeued,) = journal.of("requeued")
    assert requeued["delay"] <= SHORT + SPREAD


@pytest.mark.parametrize("task", TASKS)
def test_resume_starts_a_body_at_once(
    worker: Worker, key: str, redlock: Redlock, journal: Journal, task: str
) -> None:
    redlock.pause(key, LONG)
    waiter = worker.send(task, key)
    wait_until_kept(worker, [waiter])
    assert journal.of("ran") == []
    redlock.resume(key)
    journal.wait_for("ran")
    # The first node's wake-up may come before a quorum of nodes has resumed.
    assert 1 <= len(journal.of("requeued")) <= 2


def test_a_unique_call_is_still_found_by_its_duplicate(
    worker: Worker, key: str, redlock: Redlock, journal: Journal, unique: Any
) -> None:
    redlock.pause(key, LONG)
    waiter = unique.delay(key)
    wait_until_kept(worker, [waiter])
    assert unique.delay(key).id == waiter.id
    redlock.resume(key)
    journal.wait_for("ran")
    assert len(journal.of("ran")) == 1


def test_all_messages_that_wait_run_after_a_resume(
    worker: Worker, key: str, redlock: Redlock, journal: Journal
) -> None:
    redlock.pause(key, LONG)
    waiters = [worker.send("pausing.run", key) for _ in range(10)]
    wait_until_kept(worker, waiters)
    redlock.resume(key)
    journal.wait_for("ran", len(waiters))


def test_a_body_that_was_told_to_wait_pauses_its_own_key(
    worker: Worker, key: str, journal: Journal
) -> None:
    worker.send("pausing.told_to_wait", key)
    ran = journal.wait_for("ran")
    (pauses,) = journal.of("pauses")
    assert ran["at"] >= pauses["until"]
