"""The brokers that scenes here run with, and a way to cut a worker off from its broker."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from celery_redlock.testing import LocalCluster
from celery_redlock.testing.proxy import TcpProxy
from tests.acceptance.conftest import KeepWorker, StartWorker
from tests.acceptance.unique.brokers.producer import Producer
from tests.acceptance.worker import Worker, kept_workers
from tests.support.rabbitmq import SCRIPT, running_rabbitmq
from tests.support.waiting import TIMEOUT

RABBITMQ = pytest.param("rabbitmq", marks=pytest.mark.system)

#: What `strike` does in a test.
NOTHING, KILLED, MINORITY = HOW = ("undisturbed", "a worker is killed", "two of five nodes die")

Strike = Callable[[], Worker]


@pytest.fixture(scope="session", params=["redis", RABBITMQ])
def broker(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[str]:
    if not SCRIPT.exists():
        reason = "needs Debian's rabbitmq-server: apt-get install rabbitmq-server"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with running_rabbitmq() as url:
        yield url


@pytest.fixture(scope="session")
def urls(urls: dict[str, str], broker: str, request: pytest.FixtureRequest) -> dict[str, str]:
    if broker == "redis":
        return urls
    return {**urls, "broker": request.getfixturevalue("rabbitmq")}


@pytest.fixture(scope="session")
def shared_workers(broker: str) -> Iterator[dict[str, Worker]]:
    """The workers of one broker."""
    with kept_workers() as workers:
        yield workers


class Cable:
    """What connects the worker under test with its broker, and can be pulled."""

    def __init__(self, url: str) -> None:
        there = urlsplit(url)
        self._proxy = TcpProxy([(str(there.hostname), int(there.port or 0))])
        host, port = self._proxy.addresses[0]
        credentials, at, _ = there.netloc.rpartition("@")
        self.url = urlunsplit(there._replace(netloc=f"{credentials}{at}{host}:{port}"))

    def pull(self) -> None:
        """Break all connections. New ones can be made: kombu gives up a worker that cannot."""
        self._proxy.reset(0)

    def close(self) -> None:
        self._proxy.close()


@pytest.fixture
def cable(urls: dict[str, str]) -> Iterator[Cable]:
    cable = Cable(urls["broker"])
    yield cable
    cable.close()


@pytest.fixture
def producer(worker: Worker, urls: dict[str, str]) -> Producer:
    """Somebody who writes messages by hand, to the shared worker's queue."""
    return Producer(url=urls["broker"], queue=worker.name)


@pytest.fixture
def settings(conf: dict[str, Any]) -> dict[str, Any]:
    """What the two workers have in common."""
    apps = ("limits_stage", "pausing", "waiting")
    return {"include": [*conf["include"], *(f"tests.acceptance.apps.{name}" for name in apps)]}


@pytest.fixture
def workers(
    how: str, settings: dict[str, Any], keep_worker: KeepWorker, start_worker: StartWorker
) -> tuple[Worker, Worker]:
    """Two workers, each with a queue of its own; the second may be killed."""
    start = start_worker if how == KILLED else keep_worker
    return keep_worker(conf=settings), start(conf=settings, number=2).wait_until_ready()


def give_back(killed: Worker) -> None:
    """Let Redis give a killed worker's messages back at once, as RabbitMQ does."""
    with killed.app.connection_for_read() as connection:
        if connection.transport.driver_type != "redis":
            return
        channel = connection.default_channel
        for tag, message in channel.client.hgetall("unacked").items():
            if json.loads(message)[2] == killed.name:
                channel.qos.restore_by_tag(tag)


@pytest.fixture
def strike(
    how: str,
    workers: tuple[Worker, Worker],
    settings: dict[str, Any],
    start_worker: StartWorker,
    cluster: LocalCluster,
) -> Iterator[Strike]:
    """Do what the test is about; return the worker that reads the queue of the second then."""
    second = workers[1]

    def strike() -> Worker:
        if how == MINORITY:
            cluster.kill(0)
            cluster.kill(1)
        if how != KILLED:
            return second
        # With Redis, a message is lost that a worker is just fetching when it is killed.
        second.app.control.cancel_consumer(
            second.name, destination=[second.nodename], reply=True, timeout=TIMEOUT
        )
        second.signal(signal.SIGKILL)
        second.wait_for_exit()
        give_back(second)
        return start_worker(conf={**settings, "task_default_queue": second.name})

    yield strike
    if how == MINORITY:
        cluster.reset()
