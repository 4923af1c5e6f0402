"""Five nodes of this process, five real ones, and a proxy in front of them where a test asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_redlock import Redlock
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.plugin import ClusterFactory
from tests.support.nodes import MemoryNodes, Nodes, ServerNodes


@pytest.fixture
def memory(redlock_memory_nodes: list[str]) -> Iterator[MemoryNodes]:
    found = MemoryNodes(redlock_memory_nodes)
    yield found
    found.close()


@pytest.fixture
def servers(redlock_cluster: LocalCluster) -> Iterator[ServerNodes]:
    found = ServerNodes(redlock_cluster)
    yield found
    found.close()


@pytest.fixture
def proxied(redlock_cluster_factory: ClusterFactory) -> Iterator[ServerNodes]:
    found = ServerNodes(redlock_cluster_factory(5, proxy=True))
    yield found
    found.close()


@pytest.fixture(params=["memory", "servers"])
def nodes(request: pytest.FixtureRequest) -> Nodes:
    found: Nodes = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Redlock:
    """A client that is connected to each of the nodes of the test."""
    asked = request.node.fixturenames
    name = next(one for one in ("any_nodes", "nodes", "proxied", "servers") if one in asked)
    found: Redlock = request.getfixturevalue(name).connected()
    return found


@pytest.fixture
def redlock(client: Redlock) -> Redlock:
    """The same, where `client` would be the one below it."""
    return client
