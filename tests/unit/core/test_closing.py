"""A client that is closed releases all its leases, however many, and does not wait for ever."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import Redlock
from celery_redlock.core import client_of
from celery_redlock.transport import parse_node
from celery_redlock.transport.memory import MemoryNode, memory_node

LEASES = 1200


@pytest.fixture
def nodes(redlock_memory_nodes: list[str]) -> list[MemoryNode]:
    return [memory_node(parse_node(url)) for url in redlock_memory_nodes]


@pytest.fixture
def client(redlock_memory_nodes: list[str]) -> Redlock:
    return Redlock(redlock_memory_nodes, ttl=60.0, node_timeout=0.01)


@pytest.fixture
def waits(client: Redlock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long each exchange may wait."""
    seen: list[float] = []
    exchange = client_of(client).transport.exchange  # type: ignore[attr-defined]

    def noted(batch: Any, timeout: float, **options: Any) -> None:
        seen.append(timeout)
        exchange(batch, timeout, **options)

    monkeypatch.setattr(client_of(client).transport, "exchange", noted)
    return seen


def take_many(client: Redlock) -> None:
    for number in range(LEASES):
        client.acquire(f"key-{number}")


def test_many_leases_are_released_in_few_exchanges(
    client: Redlock, nodes: list[MemoryNode], waits: list[float]
) -> None:
    take_many(client)
    waits.clear()
    client.close()
    assert len(waits) == LEASES / 100
    assert not any(node.state.keys for node in nodes)


def test_nodes_that_are_gone_are_not_waited_for_again_and_again(
    client: Redlock, nodes: list[MemoryNode], waits: list[float]
) -> None:
    take_many(client)
    waits.clear()
    for node in nodes:
        node.pause()
    client.close()
    assert sum(wait > 0 for wait in waits) == 5
    for node in nodes:
        node.resume()
    # They have been sent everything all the same.
    assert not any(node.state.keys for node in nodes)


def test_nodes_that_answer_again_are_waited_for(
    client: Redlock, nodes: list[MemoryNode], waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_many(client)
    waits.clear()
    for node in nodes:
        node.pause()

    def sleep(seconds: float) -> None:
        for node in nodes:
            node.resume()

    monkeypatch.setattr(client_of(client).transport, "sleep", sleep)
    client.close()
    assert all(wait > 0 for wait in waits)
    assert not any(node.state.keys for node in nodes)
