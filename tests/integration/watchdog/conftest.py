"""Five real nodes, and a proxy in front of them where a test asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_redlock.testing import LocalCluster
from tests.support.nodes import MemoryNodes, Nodes, ServerNodes
from tests.support.pulse import Pulse


@pytest.fixture
def servers(redlock_cluster: LocalCluster) -> Iterator[ServerNodes]:
    found = ServerNodes(redlock_cluster)
    yield found
    found.close()


@pytest.fixture
def proxied(redlock_cluster_factory: Callable[..., LocalCluster]) -> Iterator[ServerNodes]:
    found = ServerNodes(redlock_cluster_factory(5, proxy=True))
    yield found
    found.close()


@pytest.fixture
def pulse() -> Iterator[Pulse]:
    with Pulse() as pulse:
        yield pulse


@pytest.fixture(params=["memory", "servers"])
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    if request.param == "servers":
        yield request.getfixturevalue("servers")
    else:
        found = MemoryNodes(request.getfixturevalue("redlock_memory_nodes"))
        yield found
        found.close()
