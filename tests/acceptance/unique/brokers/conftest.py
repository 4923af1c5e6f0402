"""The brokers that scenes here run with, and a way to cut a worker off from its broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import pytest

from celery_redlock.testing.proxy import TcpProxy
from tests.acceptance.unique.brokers.producer import Producer
from tests.acceptance.worker import Worker, kept_workers
from tests.support.rabbitmq import SCRIPT, running_rabbitmq

RABBITMQ = pytest.param("rabbitmq", marks=pytest.mark.system)


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
