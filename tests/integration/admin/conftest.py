"""Five nodes of this process, and five real ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_redlock.testing import LocalCluster
from tests.support.nodes import MemoryNodes, Nodes, ServerNodes


@pytest.fixture
def servers(redlock_cluster: LocalCluster) -> Iterator[ServerNodes]:
    found = ServerNodes(redlock_cluster)
    yield found
    found.close()


@pytest.fixture(params=["memory", "servers"])
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    if request.param == "servers":
        yield request.getfixturevalue("servers")
    else:
        found = MemoryNodes(request.getfixturevalue("redlock_memory_nodes"))
        yield found
        found.close()
