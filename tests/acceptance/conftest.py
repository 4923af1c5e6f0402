"""One broker, five lock nodes and a worker for each pool, shared by all rows that spare it."""

from __future__ import annotations

import gc
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_redlock import Lease, Redlock
from celery_redlock.testing import LocalCluster
from tests.acceptance.matrix import POOLS
from tests.acceptance.program import stop_all
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.worker import Worker, kept_workers

StartWorker = Callable[..., Worker]
PauseNodes = Callable[..., Callable[[], None]]

WORKERS_OF_TEST = pytest.StashKey[list[Worker]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring tests of one pool together: a process that runs a part of them starts few workers."""
    here = Path(__file__).parent
    places = [place for place, item in enumerate(items) if here in item.path.parents]
    ours = sorted((items[place] for place in places), key=_pool_number)
    for place, item in zip(places, ours, strict=True):
        items[place] = item


def _pool_number(item: pytest.Item) -> int:
    callspec = getattr(item, "callspec", None)
    pool = callspec.params.get("pool") if callspec else None
    return POOLS.index(pool or POOLS[0])


@pytest.fixture(scope="session")
def store() -> Iterator[str]:
    """The server that is broker, result backend and journal, and never a lock node."""
    with LocalCluster(1, armed=False) as cluster:
        yield cluster.urls[0].removesuffix("/0")
        # A result that nobody needs any more tells the backend so, which has to be there then.
        gc.collect()


@pytest.fixture(scope="session")
def urls(store: str) -> dict[str, str]:
    return {"broker": f"{store}/0", "backend": f"{store}/1", "journal": f"{store}/2"}


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """The five lock nodes."""
    with LocalCluster(n=5) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def conf(cluster: LocalCluster) -> dict[str, Any]:
    """The settings that all workers share unless a test says otherwise."""
    return {
        "redlock_nodes": list(cluster.urls),
        "redlock_tasks": {"vendor.*": {"lock_key": "{key}"}},
    }


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="session")
def shared_workers() -> Iterator[dict[str, Worker]]:
    with kept_workers() as workers:
        yield workers


@pytest.fixture
def worker(
    request: pytest.FixtureRequest,
    pool: str,
    shared_workers: dict[str, Worker],
    urls: dict[str, str],
    conf: dict[str, Any],
    logs: Path,
) -> Iterator[Worker]:
    """The worker of this pool that lives through the whole run; a test must leave it running."""
    worker = shared_workers.get(pool)
    if worker is None or not worker.is_running:
        worker = shared_workers[pool] = Worker(pool=pool, urls=urls, conf=conf, logs=logs)
        worker.wait_until_ready()
    request.node.stash.setdefault(WORKERS_OF_TEST, []).append(worker)
    yield worker
    assert worker.is_running, "the test ended a worker that others use"


@pytest.fixture
def pool() -> str:
    """The pool of tests that are not about pools."""
    return "prefork"


@pytest.fixture
def start_worker(
    request: pytest.FixtureRequest, urls: dict[str, str], conf: dict[str, Any], logs: Path
) -> Iterator[StartWorker]:
    """Start a worker of the test's own, which it may kill; settings given win over the shared."""
    workers: list[Worker] = []

    def start(pool: str = "prefork", **more: Any) -> Worker:
        more = {"urls": urls, "logs": logs, **more, "conf": {**conf, **more.get("conf", {})}}
        worker = Worker(pool=pool, **more)
        workers.append(worker)
        request.node.stash.setdefault(WORKERS_OF_TEST, []).append(worker)
        return worker

    yield start
    stop_all(workers)


_numbers = itertools.count(1)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A lock key that no other test uses."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.originalname.removeprefix("test_"))
    return f"{name[:40]}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def lock(key: str, cluster: LocalCluster) -> Iterator[Lock]:
    lock = Lock(key, list(cluster.urls))
    yield lock
    lock.close()


@pytest.fixture
def holder(cluster: LocalCluster, key: str) -> Iterator[Lease]:
    """The lease of somebody who holds the key until the test releases it."""
    with Redlock(list(cluster.urls), node_timeout=2.0) as redlock:
        yield redlock.acquire(key, ttl=60.0)


@pytest.fixture
def journal(key: str, urls: dict[str, str]) -> Iterator[Journal]:
    journal = Journal(key, urls["journal"])
    yield journal
    # No body stays behind at a gate, whatever became of the test.
    journal.open()
    journal.close()


@pytest.fixture
def pause_nodes(cluster: LocalCluster) -> Iterator[PauseNodes]:
    """Stop nodes; what it returns, or else the end of the test, lets them run on."""

    def resume() -> None:
        for index in range(len(cluster)):
            cluster.resume(index)

    def pause(*indexes: int) -> Callable[[], None]:
        for index in indexes:
            cluster.pause(index)
        return resume

    yield pause
    resume()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        for worker in item.stash.get(WORKERS_OF_TEST, []):
            report.sections.append((f"log of {worker.name}", worker.log_tail))
    return report
