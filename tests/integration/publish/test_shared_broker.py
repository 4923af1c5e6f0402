"""Two environments that share a broker by `global_keyprefix` share none of their locks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redlock import Limit, Rate, RedlockTask, is_duplicate
from celery_redlock.protocol.keys import FENCE_PREFIX, GUARD_KEY
from celery_redlock.tasks.config.client import client_for, close_clients
from celery_redlock.testing import LocalCluster

ENVIRONMENTS = ("staging:", "production:")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_clients()


def environment(cluster: LocalCluster, prefix: str) -> Any:
    """Return the task of an app whose broker is its only lock node."""
    app = Celery("shop", broker=cluster.urls[0], set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": prefix}
    app.conf.redlock_node_timeout = 5.0
    app.conf.redlock_guard = True

    @app.task(
        name="report",
        base=RedlockTask,
        lock_key="report",
        lock_mode="until_executed",
        shared=False,
    )
    def report() -> None: ...

    return report


@pytest.mark.parametrize("redlock_cluster", [{"n": 1}], indirect=True)
def test_a_call_of_one_environment_is_no_duplicate_of_another_one_s(
    redlock_cluster: LocalCluster,
) -> None:
    staging, production = (environment(redlock_cluster, prefix) for prefix in ENVIRONMENTS)
    calls = [task.delay() for task in (staging, production, production)]
    assert [is_duplicate(call) for call in calls] == [False, False, True]


@pytest.mark.parametrize("redlock_cluster", [{"n": 1}], indirect=True)
def test_every_record_on_the_broker_but_the_shared_ones_names_its_environment(
    redlock_cluster: LocalCluster,
) -> None:
    tasks = [environment(redlock_cluster, prefix) for prefix in ENVIRONMENTS]
    clients = [client_for(task.app) for task in tasks]
    for task, redlock in zip(tasks, clients, strict=True):
        task.delay()
        for key in (Limit("limit", 2), Rate("rate", "2/m"), "ordinary"):
            redlock.acquire_for_task([key])
    found = [key.decode() for key in redlock_cluster.client(0).scan_iter()]
    own = [key for key in found if key != GUARD_KEY and not key.startswith(FENCE_PREFIX)]
    assert own
    assert [key for key in own if not any(prefix in key for prefix in ENVIRONMENTS)] == []
    for kind in ("limit", "rate", "ordinary", "report"):
        assert len({key for key in own if f"redlock:{kind}" in key}) >= len(ENVIRONMENTS)
