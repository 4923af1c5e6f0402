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
from tests.acceptance.program import Program, stop_all
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.worker import Worker, kept_workers

StartWorker = Callable[..., Worker]
PauseNodes = Callable[..., Callable[[], None]]
KeepWorker = Callable[..., Worker]

#: What a test is repeated for: `make test` runs the first of its cases, `make test-full` all.
REPEATED_FOR = {"pool", "mode", "how"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Mark what only repeats a fact, and bring tests of one pool together.

    A process that runs a part of them then starts few workers.
    """
    here = f"{Path(__file__).parent}{os.sep}"
    places = [place for place, item in enumerate(items) if str(item.path).startswith(here)]
    ours = sorted((items[place] for place in places), key=_pool_number)
    seen: set[tuple[Any, ...]] = set()
    for place, item in zip(places, ours, strict=True):
        items[place] = item
        if REPEATED_FOR & _parameters(item).keys():
            fact = _fact(item)
            if fact in seen:
                item.add_marker(pytest.mark.full)
            seen.add(fact)


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _pool_number(item: pytest.Item) -> int:
    return POOLS.index(_parameters(item).get("pool", POOLS[0]))


def _fact(item: pytest.Item) -> tuple[Any, ...]:
    """Return what is equal for the cases of a test that show the same fact."""
    others = ((name, repr(value)) for name, value in sorted(_parameters(item).items()))
    return (
        item.nodeid.partition("[")[0],
        *(other for other in others if other[0] not in REPEATED_FOR),
    )


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
def shared_workers(urls: dict[str, str], cluster: LocalCluster) -> Iterator[dict[str, Worker]]:
    """Workers that several tests use; they end before the servers that they use."""
    with kept_workers() as workers:
        yield workers


@pytest.fixture
def keep_worker(
    request: pytest.FixtureRequest,
    shared_workers: dict[str, Worker],
    urls: dict[str, str],
    conf: dict[str, Any],
    logs: Path,
) -> Iterator[KeepWorker]:
    """
    Give the worker of a pool with these settings, which lives through the whole run.

    The first test that asks starts it; each must leave it running. A worker costs more than most
    tests.
    """
    kept: list[Worker] = []

    def keep(pool: str = "prefork", **more: Any) -> Worker:
        more = {"urls": urls, "logs": logs, **more, "conf": {**conf, **more.get("conf", {})}}
        name = repr((pool, more))
        worker = shared_workers.get(name)
        if worker is None or not worker.is_running:
            worker = shared_workers[name] = Worker(pool=pool, **more)
        kept.append(worker.show_if_it_fails(request.node))
        return worker.wait_until_ready()

    yield keep
    assert all(worker.is_running for worker in kept), "the test ended a worker that others use"


@pytest.fixture
def worker(pool: str, keep_worker: KeepWorker) -> Worker:
    """The worker of this pool with the settings that all share."""
    return keep_worker(pool)


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
        return worker.show_if_it_fails(request.node)

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
        Program.add_logs(item, report)
    return report
