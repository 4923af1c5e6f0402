"""A client of in-memory nodes, and what it reports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_redlock import Redlock
from tests.support.observing import events, interrupt, receive

__all__ = ["events", "interrupt", "receive", "redlock"]


@pytest.fixture
def redlock(redlock_memory_nodes: list[str]) -> Iterator[Redlock]:
    with Redlock(redlock_memory_nodes) as client:
        yield client
