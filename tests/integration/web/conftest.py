"""The page in front of five nodes of this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `web`")

from tests.integration.web.site import Site, served
from tests.support.nodes import MemoryNodes, Nodes


@pytest.fixture
def site(memory: MemoryNodes) -> Iterator[Site]:
    with served(memory.client()) as found:
        yield found


@pytest.fixture
def any_site(nodes: Nodes) -> Iterator[Site]:
    with served(nodes.connected()) as found:
        yield found
