"""The nodes, the broker and the worker of the acceptance tests, with bodies of these scenes."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.testing import LocalCluster
from tests.acceptance.conftest import (
    cluster,
    journal,
    keep_worker,
    key,
    lock,
    logs,
    pool,
    pytest_runtest_makereport,
    shared_workers,
    store,
    urls,
    worker,
)

__all__ = [
    "cluster",
    "journal",
    "keep_worker",
    "key",
    "lock",
    "logs",
    "pool",
    "pytest_runtest_makereport",
    "shared_workers",
    "store",
    "urls",
    "worker",
]


@pytest.fixture(scope="session")
def conf(cluster: LocalCluster) -> dict[str, Any]:
    return {"redlock_nodes": list(cluster.urls), "include": ["tests.fencing.scenes.bodies"]}
