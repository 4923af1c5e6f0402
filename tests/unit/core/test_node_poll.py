"""A poll shows for every node whether it votes."""

from __future__ import annotations

import itertools

import pytest

from celery_redlock import Redlock
from celery_redlock.core import client_of
from celery_redlock.core.node_admin import POLL_KEY, poll_nodes
from celery_redlock.protocol.votes import Failed, Granted, Quarantined, Refused
from celery_redlock.transport import parse_node
from celery_redlock.transport.memory import memory_node

_numbers = itertools.count()


@pytest.fixture
def nodes() -> list[str]:
    number = next(_numbers)
    return [f"memory://polled-{number}-{node}" for node in range(3)]


def kinds(client: Redlock) -> list[type]:
    return [type(vote) for vote in poll_nodes(client_of(client)).votes]


def test_every_node_votes_and_keeps_no_key(nodes: list[str]) -> None:
    with Redlock(nodes) as client:
        assert kinds(client) == [Granted] * 3
    for node in nodes:
        memory = memory_node(parse_node(node))
        assert memory.state.owner(POLL_KEY.stored, memory.now_us()) is None


def test_a_minority_that_is_silent_or_quarantined_is_seen_although_a_quorum_votes(
    nodes: list[str],
) -> None:
    with Redlock([*nodes, *(f"{node}-more" for node in nodes[:2])]) as client:
        memory_node(parse_node(nodes[0])).restart()
        memory_node(parse_node(nodes[1])).pause()
        assert kinds(client) == [Quarantined, Failed, Granted, Granted, Granted]
        memory_node(parse_node(nodes[1])).resume()


def test_polls_of_several_workers_at_once_refuse_no_vote(nodes: list[str]) -> None:
    with Redlock(nodes) as client:
        lease = client_of(client).acquire_for_task((), (POLL_KEY,))
        assert kinds(client) == [Refused] * 3
        lease.release()
