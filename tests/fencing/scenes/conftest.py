"""The nodes, the broker and the worker of the acceptance tests, with bodies of these scenes."""

from __future__ import annotations

from pathlib import Path
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


@pytest.fixture(
    params=["sqlite", "redis", pytest.param("postgresql", marks=pytest.mark.system)],
)
def resource_url(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> str:
    """Where the balance is kept."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'bank.sqlite'}"
    if request.param == "redis":
        return f"{store}/3"
    return f"postgresql+psycopg://{request.getfixturevalue('postgres_address')}"
