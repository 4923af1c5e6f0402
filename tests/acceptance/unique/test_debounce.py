"""A task that runs once after the last call of a burst (`lock_debounce`)."""

from __future__ import annotations

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
from celery.result import AsyncResult

from tests.acceptance.apps.unique_tasks import DEBOUNCE
from tests.acceptance.conftest import PauseNodes
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.conftest import MakePublisher
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import ROOT
from tests.support.waiting import TIMEOUT, wait_until

TASK = "unique.debounced.until_executing"
QUIET, AT_MOST = DEBOUNCE


@pytest.fixture(params=["until_executing", "until_and_while_executing"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def send_all(publisher: Publisher, key: str, count: int, task: str = TASK) -> list[AsyncResult]:
    return [publisher.send(task, key, number) for number in range(count)]


def assert_only_the_newest_ran(results: list[AsyncResult], journal: Journal) -> None:
    wait_until(lambda: all(result.ready() for result in results), message="all to end")
    assert [entry["id"] for entry in journal.of("ran")] == [results[-1].id]
    ends = [result.state for result in results]
    assert ends == [states.REVOKED] * (len(results) - 1) + [states.SUCCESS]


def test_a_burst_runs_once_with_its_newest_arguments_and_not_early(
    mode: str, publisher: Publisher, published: Lock, journal: Journal
) -> None:
    task = f"unique.debounced.{mode}"
    results = send_all(publisher, journal.key, 4, task)
    before_the_newest = time.time()
    results.append(publisher.send(task, journal.key, 4))

    assert_only_the_newest_ran(results, journal)

    (run,) = journal.of("ran")
    assert run["number"] == 4
    assert run["at"] >= before_the_newest + QUIET
    published.wait_until_gone()


def test_a_burst_that_ends_before_a_worker_comes_runs_once(
    fresh_queue: tuple[str, Callable[[], None]], make_publisher: MakePublisher, journal: Journal
) -> None:
    queue, listen = fresh_queue
    publisher = make_publisher(queue)
    results = send_all(publisher, journal.key, 3)
    begun = time.time()
    wait_until(lambda: time.time() > begun + AT_MOST, message="the burst to be over")
    results += send_all(publisher, journal.key, 3)

    listen()

    assert_only_the_newest_ran(results, journal)


def test_a_burst_runs_once_while_a_minority_of_nodes_is_down(
    publisher: Publisher, journal: Journal, pause_nodes: PauseNodes
) -> None:
    results = send_all(publisher, journal.key, 2)
    pause_nodes(0, 1)
    results += send_all(publisher, journal.key, 2)

    assert_only_the_newest_ran(results, journal)


def test_calls_that_do_not_stop_run_all_the_same_and_the_newest_runs_in_the_end(
    publisher: Publisher, journal: Journal
) -> None:
    results, began = list[AsyncResult](), time.time()

    def call_until_two_have_run() -> bool:
        results.append(publisher.send(TASK, journal.key, len(results)))
        return len(journal.of("ran")) >= 2

    wait_until(call_until_two_have_run, message="two of the calls to run")

    wait_until(lambda: results[-1].state == states.SUCCESS, message="the newest to run")
    runs = journal.of("ran")
    numbers = [run["number"] for run in runs]
    assert numbers == sorted(set(numbers))
    assert runs[0]["at"] >= began + AT_MOST


@pytest.fixture
def start_sender(
    urls: dict[str, str], conf: dict[str, Any], key: str
) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start a publisher that stands still between its lock and its message."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(queue: str) -> subprocess.Popen[bytes]:
        stage = {"urls": urls, "conf": {**conf, "task_default_queue": queue}}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.apps.unique_sender", TASK, key],
            cwd=ROOT,
            env={**os.environ, "ACCEPTANCE_STAGE": json.dumps(stage)},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_an_older_call_runs_where_the_publisher_of_a_newer_one_is_killed_before_it_sends(
    fresh_queue: tuple[str, Callable[[], None]],
    start_sender: Callable[[str], subprocess.Popen[bytes]],
    make_publisher: MakePublisher,
    journal: Journal,
) -> None:
    queue, listen = fresh_queue
    older = make_publisher(queue).send(TASK, journal.key, 1)
    sender = start_sender(queue)
    journal.wait_for("publishing")
    os.kill(sender.pid, signal.SIGKILL)

    listen()

    assert older.get(timeout=TIMEOUT) == 1
    assert [entry["number"] for entry in journal.of("ran")] == [1]
