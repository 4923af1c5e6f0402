"""Workers and publishers that know the unique tasks, and the places where their locks stand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection
from kombu.transport.redis import Channel

from celery_redlock.testing import LocalCluster
from tests.acceptance.program import stop_all
from tests.acceptance.scene import Lock
from tests.acceptance.unique.crowd import Crowd
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT

MakePublisher = Callable[..., Publisher]
StartImpatient = Callable[..., Worker]
PublishTo = Callable[[Worker], Publisher]

# The broker delivers again what a worker has not acknowledged within two seconds. It does so to
# every message in the same database, so these workers have one of their own.
IMPATIENT = {
    "broker_transport_options": {
        "visibility_timeout": 2,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
}


@pytest.fixture(scope="session")
def conf(conf: dict[str, Any]) -> dict[str, Any]:
    """The settings of all workers here, with the modules that they load."""
    return {
        **conf,
        "redlock_node_timeout": 1.0,  # nodes are as busy as the machine
        "include": ["tests.acceptance.apps.plain", "tests.acceptance.apps.unique_stage"],
    }


@pytest.fixture
def make_publisher(urls: dict[str, str], conf: dict[str, Any]) -> Iterator[MakePublisher]:
    """Make a publisher for a worker's queue; settings given win over the shared ones."""
    publishers: list[Publisher] = []

    def make(queue: str, *, broker: str | None = None, **settings: Any) -> Publisher:
        publisher = Publisher(
            urls={**urls, "broker": broker or urls["broker"]},
            conf={**conf, **settings},
            queue=queue,
        )
        publishers.append(publisher)
        return publisher

    yield make
    for publisher in publishers:
        publisher.close()


@pytest.fixture
def publisher(worker: Worker, make_publisher: MakePublisher) -> Publisher:
    return make_publisher(worker.name)


@pytest.fixture
def queued(key: str, cluster: LocalCluster) -> Iterator[Lock]:
    """What a waiting message of `until_and_while_executing` holds while another one runs."""
    place = Lock(key, list(cluster.urls))
    place.key = f"redlock-meta:queued:redlock:{key}"
    yield place
    place.close()


@pytest.fixture
def mode() -> str:
    """The mode of tests that are not about modes."""
    return "until_executed"


@pytest.fixture
def published(mode: str, lock: Lock, queued: Lock) -> Lock:
    """The lock that a message of this mode carries."""
    return queued if mode == "until_and_while_executing" else lock


@pytest.fixture
def keep_away(worker: Worker) -> Iterator[Callable[[], None]]:
    """Messages stay in the queue until this is called, or else until the end of the test."""
    control = worker.app.control
    to = {"destination": [worker.nodename], "reply": True, "timeout": TIMEOUT}

    def come_back() -> None:
        control.add_consumer(worker.name, **to)

    control.cancel_consumer(worker.name, **to)
    yield come_back
    come_back()


@pytest.fixture
def crowd(key: str, worker: Worker, urls: dict[str, str], conf: dict[str, Any]) -> Iterator[Crowd]:
    # A hundred threads share few cores here: what is late is the publisher, not the lock node.
    settings = {**conf, "task_default_queue": worker.name, "redlock_node_timeout": 2.0}
    crowd = Crowd(key=key, urls=urls, conf=settings)
    yield crowd
    crowd.end()


@pytest.fixture
def fresh_queue(worker: Worker, key: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """
    A queue that the worker listens to once the function is called.

    From one that it has only stopped listening to, a message may still be taken and put back, and
    counts as redelivered then.
    """
    control = worker.app.control
    to = {"destination": [worker.nodename], "reply": True, "timeout": TIMEOUT}
    yield key, lambda: control.add_consumer(key, **to)
    control.cancel_consumer(key, **to)


@pytest.fixture(scope="session")
def impatient_urls(store: str, urls: dict[str, str]) -> Iterator[dict[str, str]]:
    """A broker whose messages are delivered again, see `IMPATIENT`."""
    broker = f"{store}/3"
    stop = threading.Event()
    sweeper = threading.Thread(target=deliver_again_until, args=(stop, broker))
    sweeper.start()
    yield {**urls, "broker": broker}
    stop.set()
    sweeper.join()


def deliver_again_until(stop: threading.Event, broker: str) -> None:
    """Do what a worker does with these settings, where kombu does not know them all yet."""
    if hasattr(Channel, "unacked_restore_interval"):
        return
    options = IMPATIENT["broker_transport_options"]
    with Connection(broker, transport_options=options) as connection:
        while not stop.wait(1.0):
            connection.default_channel.qos.restore_visible(num=100, interval=1)


@pytest.fixture
def impatient_conf() -> dict[str, Any]:
    """What a file's workers with an impatient broker have in common beyond that."""
    return {}


@pytest.fixture
def start_impatient(
    request: pytest.FixtureRequest,
    impatient_urls: dict[str, str],
    impatient_conf: dict[str, Any],
    conf: dict[str, Any],
    logs: Path,
) -> Iterator[StartImpatient]:
    """Start workers that read one queue of the impatient broker, and that the test may kill."""
    workers: list[Worker] = []

    def start(**settings: Any) -> Worker:
        queue = {"task_default_queue": workers[0].name} if workers else {}
        worker = Worker(
            pool="prefork",
            urls=impatient_urls,
            conf={**conf, **IMPATIENT, **impatient_conf, **settings, **queue},
            logs=logs,
        )
        workers.append(worker)
        return worker.show_if_it_fails(request.node)

    yield start
    stop_all(workers)


@pytest.fixture(scope="session")
def shared_pairs() -> Iterator[dict[str, list[Worker]]]:
    pairs: dict[str, list[Worker]] = {}
    yield pairs
    stop_all(worker for pair in pairs.values() for worker in pair)


@pytest.fixture
def pair(
    request: pytest.FixtureRequest,
    shared_pairs: dict[str, list[Worker]],
    impatient_urls: dict[str, str],
    impatient_conf: dict[str, Any],
    conf: dict[str, Any],
    logs: Path,
) -> list[Worker]:
    """
    Two workers that read one queue of the impatient broker; it is named after the first.

    Tests with the same settings share them, and must leave them running.
    """
    settings = {**conf, **IMPATIENT, **impatient_conf}
    workers = shared_pairs.setdefault(repr(impatient_conf), [])
    while len(workers) < 2:
        queue = {"task_default_queue": workers[0].name} if workers else {}
        workers.append(
            Worker(pool="prefork", urls=impatient_urls, conf={**settings, **queue}, logs=logs)
        )
    return [worker.show_if_it_fails(request.node).wait_until_ready() for worker in workers]


@pytest.fixture
def publish_to(make_publisher: MakePublisher, impatient_urls: dict[str, str]) -> PublishTo:
    """Make a publisher for a worker whose broker is impatient."""

    def make(worker: Worker, **settings: Any) -> Publisher:
        return make_publisher(worker.name, broker=impatient_urls["broker"], **IMPATIENT, **settings)

    return make
