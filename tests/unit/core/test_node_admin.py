"""Which nodes are armed, and what is said of those that are not."""

from __future__ import annotations

import pytest

from celery_redlock.core import arm_nodes
from celery_redlock.transport import parse_node
from celery_redlock.transport.memory import MemoryNode, memory_node
from tests.support.nodes import flip_role, renew_backlog


@pytest.fixture
def nodes(redlock_memory_nodes: list[str]) -> list[MemoryNode]:
    """Five nodes that are brand-new."""
    nodes = [memory_node(parse_node(url)) for url in redlock_memory_nodes]
    for node in nodes:
        node.state.lose_data()
    return nodes


def states(nodes: list[MemoryNode], *, force: bool = False) -> list[str]:
    return [answer.state for answer in arm_nodes([n.name for n in nodes], force=force)]


def details(nodes: list[MemoryNode]) -> list[str]:
    return [answer.detail for answer in arm_nodes([n.name for n in nodes])]


def records(nodes: list[MemoryNode]) -> list[bool]:
    return [node.state.guard is not None for node in nodes]


@pytest.mark.parametrize("trouble", ["refusing", "paused", "garbage"])
def test_no_node_is_armed_while_one_does_not_answer(nodes: list[MemoryNode], trouble: str) -> None:
    setattr(nodes[4], trouble, True)

    assert states(nodes) == ["missing"] * 4 + ["failed"]
    assert not any(records(nodes))


def test_the_nodes_that_did_not_answer_are_named(nodes: list[MemoryNode]) -> None:
    nodes[3].kill()
    nodes[4].kill()

    named = f"not all nodes could be asked: {nodes[3].name}, {nodes[4].name}. Start them"
    assert [named in detail for detail in details(nodes)] == [True] * 3 + [False] * 2


def test_one_record_tells_that_the_set_is_in_use(nodes: list[MemoryNode]) -> None:
    states(nodes[2:3], force=True)

    assert states(nodes) == ["missing", "missing", "serving", "missing", "missing"]
    assert "in use" in details(nodes)[0]


def test_the_record_of_another_process_tells_so_as_well(nodes: list[MemoryNode]) -> None:
    states(nodes[2:3], force=True)
    nodes[2].restart(keep_data=True)

    assert states(nodes) == ["missing", "missing", "other", "missing", "missing"]


def test_the_nodes_that_answer_are_armed_by_force(nodes: list[MemoryNode]) -> None:
    nodes[4].kill()

    assert states(nodes, force=True) == ["armed"] * 4 + ["failed"]


def test_a_single_node_has_nobody_to_tell_that_it_is_new(nodes: list[MemoryNode]) -> None:
    assert states(nodes[:1]) == ["missing"]
    assert records(nodes[:1]) == [False]
    assert "no other node can show" in details(nodes[:1])[0]


def test_a_single_node_is_armed_by_force(nodes: list[MemoryNode]) -> None:
    assert states(nodes[:1], force=True) == ["armed"]
    assert states(nodes[:1]) == ["serving"]


def test_a_node_that_was_backed_up_serves_and_one_that_was_promoted_does_not(
    nodes: list[MemoryNode],
) -> None:
    states(nodes)
    renew_backlog(nodes[0])
    flip_role(nodes[1])
    assert states(nodes) == ["serving", "other", "serving", "serving", "serving"]
