"""A client for the event loop of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from celery_redlock import AsyncRedlock
from tests.support.nodes import CALM, Nodes


@pytest.fixture
def redlock(nodes: Nodes) -> Iterator[AsyncRedlock]:
    """A patient client of the nodes of the test."""
    made = AsyncRedlock(nodes.urls, node_timeout=CALM)
    yield made
    asyncio.run(made.aclose())
