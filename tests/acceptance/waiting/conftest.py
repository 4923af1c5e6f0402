"""Workers that know the tasks that wait."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.waiters import INCLUDE


@pytest.fixture(scope="session")
def conf(conf: dict[str, Any]) -> dict[str, Any]:
    return {
        **conf,
        "redlock_node_timeout": 1.0,  # nodes are as busy as the machine
        "include": INCLUDE,
    }
