"""The page in front of five nodes of this process, and of five real ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `web`")

from celery_redlock.testing import LocalCluster
from tests.integration.web.site import Site, served
from tests.support.nodes import MemoryNodes, Nodes, ServerNodes


@pytest.fixture
def servers(redlock_cluster: LocalCluster) -> Iterator[ServerNodes]:
    found = ServerNodes(redlock_cluster)
    yield found
    found.close()


@pytest.fixture
def memory(redlock_memory_nodes: list[str]) -> Iterator[MemoryNodes]:
    found = MemoryNodes(redlock_memory_nodes)
    yield found
    found.close()


@pytest.fixture(params=["memory", "servers"])
def nodes(request: pytest.FixtureRequest) -> Nodes:
    found: Nodes = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def site(memory: MemoryNodes) -> Iterator[Site]:
    with served(memory.client()) as found:
        yield found
