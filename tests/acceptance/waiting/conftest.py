"""Workers that know the tasks that wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.waiters import INCLUDE
from tests.acceptance.worker import Worker, kept_workers


@pytest.fixture(scope="session")
def conf(conf: dict[str, Any]) -> dict[str, Any]:
    return {
        **conf,
        "redlock_node_timeout": 1.0,  # nodes are as busy as the machine
        "include": INCLUDE,
    }


@pytest.fixture(scope="session")
def shared_workers() -> Iterator[dict[str, Worker]]:
    with kept_workers() as workers:
        yield workers
