"""Workers with a Sentinel group as lock node, which the broker is when no nodes are given."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest
import redis
from celery.result import AsyncResult
from kombu.exceptions import OperationalError

from celery_redlock.testing import LocalSentinel
from tests.acceptance.conftest import StartWorker
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until


@pytest.fixture
def sentinel() -> Iterator[LocalSentinel]:
    with LocalSentinel(1) as groups:
        yield groups


@pytest.fixture
def worker(
    sentinel: LocalSentinel, start_worker: StartWorker, urls: dict[str, str]
) -> Iterator[Worker]:
    broker = ";".join(url.replace("redis://", "sentinel://") for url in sentinel.sentinel_urls)
    options = {"master_name": sentinel.name(0)}
    worker = start_worker(
        urls={**urls, "broker": broker},
        conf={"redlock_nodes": None, "broker_transport_options": options},
    )
    worker.app.conf.broker_transport_options = options
    yield worker.wait_until_ready()
    worker.app.close()


@pytest.mark.full
def test_a_task_runs_under_its_lock_on_the_broker_before_and_after_a_failover(
    worker: Worker, sentinel: LocalSentinel, urls: dict[str, str], key: str
) -> None:
    first, second = sentinel.server_urls()
    assert runs_under_its_lock(worker, key, first, urls["journal"])
    assert sentinel.fail_over() == 1
    numbers = itertools.count()
    # For five seconds the former master may be asked, which is a master for ten.
    wait_until(
        lambda: runs_under_its_lock(worker, f"{key}-{next(numbers)}", second, urls["journal"])
    )


def runs_under_its_lock(worker: Worker, key: str, server: str, journal_url: str) -> bool:
    """Send a task, return whether its lock is on a server while its body runs, and let it end."""
    lock, journal = Lock(key, [server]), Journal(key, journal_url)
    result = sent(worker, key)
    entered = journal.wait_for("entered")
    is_there = lock.owner == entered["owner"] is not None
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()
    lock.close()
    journal.close()
    return is_there


def sent(worker: Worker, key: str) -> AsyncResult:
    """Send a task, in spite of connections to a former master."""

    def send() -> AsyncResult | None:
        with contextlib.suppress(redis.RedisError, OperationalError):
            return worker.send("hold", key)
        return None

    return wait_until(send)


@pytest.mark.full
def test_the_log_says_what_a_failover_may_forget(worker: Worker) -> None:
    assert "redlock_nodes is not set" in worker.log
    assert "Its Sentinels may promote a replica that lacks the newest locks" in worker.log


@pytest.mark.full
def test_a_worker_does_not_start_with_a_group_that_its_sentinels_do_not_know(
    sentinel: LocalSentinel, start_worker: StartWorker
) -> None:
    nodes = [sentinel.urls[0].replace("locks-0", "lokcs")]
    worker = start_worker(conf={"redlock_nodes": nodes})

    assert worker.wait_for_exit() != 0
    assert "Error: Lock nodes cannot be used: " in worker.log
    assert "its Sentinels watch no master named 'lokcs'; correct the URL" in worker.log
