"""A lock that was taken when a task was sent ends, though no worker ever begins the task."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import states
from kombu.exceptions import OperationalError

from celery_redlock import RedlockTask, is_duplicate, is_skipped
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.testing.server import ReservedPort
from tests.acceptance.apps.unique_tasks import (
    BRIEF_WINDOW,
    BRIEFLY,
    FREE_AT_THE_END,
    GRACE,
    MODES,
    WINDOW,
)
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.conftest import MakePublisher
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import ROOT, Worker
from tests.support.waiting import TIMEOUT, wait_until

HOUR = 3600.0
QUEUE_TTL = 3.0
EXPIRES = dt.timedelta(seconds=1)
# What a lock may last beyond its task: clocks differ, and the worker looks when it comes to it.
SLACK = 5.0


def assert_runs(publisher: Publisher, journal: Journal, task: str) -> None:
    following = publisher.send(task, journal.key)
    assert not is_duplicate(following)
    journal.open()
    assert following.get(timeout=TIMEOUT) == "held"
    assert [entry["id"] for entry in journal.of("entered")] == [following.id]


def wait_until_not_a_duplicate(publisher: Publisher, task: str, key: str, within: float) -> float:
    """Publish until it is no duplicate; return how long that took."""
    began = time.monotonic()
    wait_until(lambda: not is_duplicate(publisher.send(task, key)), within)
    return time.monotonic() - began


@pytest.mark.parametrize("mode", MODES)
def test_a_task_revoked_before_its_start_frees_its_key(
    mode: str,
    keep_away: Callable[[], None],
    worker: Worker,
    publisher: Publisher,
    published: Lock,
    journal: Journal,
) -> None:
    result = publisher.send(f"unique.{mode}", journal.key)
    published.wait_until_held()
    worker.app.control.revoke(result.id, destination=[worker.nodename], reply=True, timeout=TIMEOUT)

    keep_away()

    published.wait_until_gone()
    assert_runs(publisher, journal, f"unique.{mode}")
    assert result.state == states.REVOKED


@pytest.mark.parametrize("mode", MODES)
def test_a_task_that_expires_in_its_queue_frees_its_key(
    mode: str,
    keep_away: Callable[[], None],
    publisher: Publisher,
    published: Lock,
    journal: Journal,
) -> None:
    expires = dt.datetime.now(dt.UTC) + EXPIRES
    result = publisher.send(f"unique.{mode}", journal.key, expires=expires)
    assert published.expires_in <= EXPIRES.total_seconds() + SLACK
    wait_until(lambda: dt.datetime.now(dt.UTC) > expires, message="the task to expire")

    keep_away()

    wait_until(lambda: result.state == states.REVOKED, message="the worker to drop the task")
    published.wait_until_gone()
    assert_runs(publisher, journal, f"unique.{mode}")


def do_nothing(key: str) -> None:
    pass


def test_a_task_that_the_worker_does_not_know_frees_its_key(
    worker: Worker, publisher: Publisher, key: str, lock: Lock
) -> None:
    options = {"base": RedlockTask, "lock_mode": "until_executed", "lock_key": "{key}"}
    unheard_of = publisher.app.task(do_nothing, name="unheard_of", shared=False, **options)

    result = unheard_of.delay(key)

    worker.wait_for_log("Received unregistered task of type 'unheard_of'")
    lock.wait_until_gone()
    assert not is_duplicate(result)


@pytest.mark.parametrize("mode", [*FREE_AT_THE_END, BRIEFLY])
def test_a_purged_task_keeps_its_key_no_longer_than_lock_queue_ttl(
    mode: str, make_publisher: MakePublisher, key: str, published: Lock
) -> None:
    publisher = make_publisher(key, redlock_queue_ttl=QUEUE_TTL)
    publisher.send(f"unique.{mode}", key)
    assert is_duplicate(publisher.send(f"unique.{mode}", key))

    assert publisher.app.control.purge() == 1

    longest = BRIEF_WINDOW if mode == BRIEFLY else QUEUE_TTL
    assert published.expires_in <= longest
    wait_until_not_a_duplicate(publisher, f"unique.{mode}", key, longest + 10)


def test_a_message_that_has_outlived_its_lock_in_the_queue_makes_way_for_the_next_one(
    fresh_queue: tuple[str, Callable[[], None]],
    make_publisher: MakePublisher,
    lock: Lock,
    journal: Journal,
) -> None:
    queue, listen = fresh_queue
    publisher = make_publisher(queue)
    hasty = make_publisher(queue, redlock_queue_ttl=QUEUE_TTL)
    older = hasty.send("unique.until_executed", journal.key)
    wait_until(lambda: lock.is_gone, QUEUE_TTL + 10)
    newer = publisher.send("unique.until_executed", journal.key)
    assert not is_duplicate(newer)

    listen()

    assert is_skipped(older.get(timeout=TIMEOUT))
    journal.open()
    assert newer.get(timeout=TIMEOUT) == "held"
    assert [entry["id"] for entry in journal.of("entered")] == [newer.id]
    lock.wait_until_gone()


@pytest.mark.parametrize("mode", MODES)
def test_a_lock_lasts_for_a_task_that_is_due_in_two_hours(
    mode: str, make_publisher: MakePublisher, key: str, published: Lock
) -> None:
    publisher = make_publisher(key)
    lasts = 2 * HOUR + (WINDOW if mode == "until_expired" else LockOptions().queue_ttl)

    publisher.send(f"unique.{mode}", key, countdown=2 * HOUR)

    # Lengthened once the message is out, which the publisher does not wait for.
    wait_until(lambda: published.expires_in > lasts - TIMEOUT, message="the lock to be lengthened")
    assert published.expires_in <= lasts
    assert is_duplicate(publisher.send(f"unique.{mode}", key))


@pytest.mark.parametrize("mode", MODES)
def test_a_lock_does_not_outlast_the_expiry_of_its_task(
    mode: str, make_publisher: MakePublisher, key: str, published: Lock
) -> None:
    publisher = make_publisher(key)

    publisher.send(f"unique.{mode}", key, countdown=HOUR, expires=2 * HOUR)

    longest = HOUR + WINDOW if mode == "until_expired" else 2 * HOUR
    wait_until(lambda: published.expires_in > longest - TIMEOUT, message="it to be lengthened")
    assert published.expires_in <= longest + SLACK


@pytest.fixture
def start_sender(
    urls: dict[str, str], conf: dict[str, Any], key: str
) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start a publisher that stands still between its lock and its message."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(task: str) -> subprocess.Popen[bytes]:
        settings = {**conf, "task_default_queue": key}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.apps.unique_sender", task, key],
            cwd=ROOT,
            env={**os.environ, "ACCEPTANCE_STAGE": json.dumps({"urls": urls, "conf": settings})},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("mode", MODES)
def test_a_publisher_that_dies_with_the_lock_and_before_the_message_frees_it_after_the_grace(
    mode: str,
    start_sender: Callable[[str], subprocess.Popen[bytes]],
    make_publisher: MakePublisher,
    journal: Journal,
    published: Lock,
) -> None:
    publisher = make_publisher(journal.key)
    sender = start_sender(f"unique.{mode}")
    journal.wait_for("publishing")
    assert published.expires_in <= GRACE

    os.kill(sender.pid, signal.SIGKILL)

    wait_until_not_a_duplicate(publisher, f"unique.{mode}", journal.key, GRACE + 10)


@pytest.fixture
def broker_that_is_down() -> Iterator[str]:
    port = ReservedPort()
    yield f"redis://127.0.0.1:{port.number}/0"
    port.release()


@pytest.mark.parametrize("mode", MODES)
def test_a_publish_that_the_broker_does_not_take_raises_and_leaves_no_lock(
    mode: str,
    make_publisher: MakePublisher,
    broker_that_is_down: str,
    key: str,
    published: Lock,
) -> None:
    publisher = make_publisher(key, broker=broker_that_is_down)

    with pytest.raises(OperationalError):
        publisher.send(f"unique.{mode}", key)

    assert not published.is_held
    assert not is_duplicate(make_publisher(key).send(f"unique.{mode}", key))
