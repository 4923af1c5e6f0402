"""What one node does with the commands for a register."""

from __future__ import annotations

import pytest

from celery_redlock.protocol import (
    Acknowledged,
    Fetched,
    Outranked,
    Versioned,
    Vote,
    fetch,
    store,
)
from celery_redlock.protocol.node import NodeState

NAME = "redlock-meta:register:r"


@pytest.fixture
def node() -> NodeState:
    return NodeState("x")


def wrote(node: NodeState, token: int, **fields: tuple[int, str] | None) -> Vote:
    return node.run(store(NAME, token, fields), 0)


def has(node: NodeState) -> dict[str, Versioned]:
    vote = node.run(fetch(NAME), 0)
    assert isinstance(vote, Fetched)
    return dict(vote.fields)


def test_a_register_that_nobody_wrote_is_empty(node: NodeState) -> None:
    assert node.run(fetch(NAME), 0) == Fetched(0, {})


def test_what_is_written_is_told_with_the_token_that_wrote_it(node: NodeState) -> None:
    assert isinstance(wrote(node, 7, a=(3, "text"), b=(4, "")), Acknowledged)
    assert node.run(fetch(NAME), 0) == Fetched(
        7, {"a": Versioned(7, 3, "text"), "b": Versioned(7, 4, "")}
    )


def test_an_older_token_is_refused_and_changes_nothing(node: NodeState) -> None:
    wrote(node, 7, a=(3, "new"))
    assert wrote(node, 6, a=(9, "old"), b=(9, "old")) == Outranked(7)
    assert has(node) == {"a": Versioned(7, 3, "new")}


def test_a_promise_refuses_older_tokens_from_then_on(node: NodeState) -> None:
    assert node.run(fetch(NAME, 7), 0) == Fetched(7, {})
    assert wrote(node, 6, a=(1, "")) == Outranked(7)
    assert node.run(fetch(NAME, 6), 0) == Outranked(7)
    assert isinstance(wrote(node, 7, a=(1, "")), Acknowledged)


def test_a_fetch_without_a_token_promises_nothing(node: NodeState) -> None:
    wrote(node, 7)
    assert node.run(fetch(NAME), 0) == Fetched(7, {})
    assert isinstance(wrote(node, 7, a=(1, "")), Acknowledged)


def test_what_runs_late_does_not_replace_a_newer_version(node: NodeState) -> None:
    wrote(node, 7, a=(3, "newer"))
    assert isinstance(wrote(node, 7, a=(2, "older")), Acknowledged)
    assert has(node) == {"a": Versioned(7, 3, "newer")}


def test_the_same_version_may_be_written_again(node: NodeState) -> None:
    wrote(node, 7, a=(3, "first"))
    wrote(node, 7, a=(3, "second"))
    assert has(node)["a"].text == "second"


def test_a_newer_token_writes_whatever_the_version(node: NodeState) -> None:
    wrote(node, 7, a=(30, "before"))
    wrote(node, 8, a=(2, "after"))
    assert has(node) == {"a": Versioned(8, 2, "after")}


def test_a_field_is_deleted_and_the_token_stays(node: NodeState) -> None:
    wrote(node, 7, a=(1, ""), b=(1, ""))
    wrote(node, 8, a=None, c=None)
    assert has(node) == {"b": Versioned(7, 1, "")}
    assert wrote(node, 7) == Outranked(8)


def test_only_the_fields_asked_for_are_told(node: NodeState) -> None:
    wrote(node, 7, a=(1, ""), b=(1, ""), c=(1, ""))
    assert node.run(fetch(NAME, 0, ["c", "x", "a"]), 0) == Fetched(
        7, {"c": Versioned(7, 1, ""), "a": Versioned(7, 1, "")}
    )


def test_what_makes_an_answer_too_long_is_named_but_the_first_is_always_told(
    node: NodeState,
) -> None:
    wrote(node, 7, a=(1, "é" * 4), b=(1, "12345678"), c=(1, ""))
    a, c = Versioned(7, 1, "é" * 4), Versioned(7, 1, "")
    assert node.run(fetch(NAME, most=16), 0) == Fetched(7, {"a": a, "c": c}, frozenset("b"))
    assert node.run(fetch(NAME, most=15), 0) == Fetched(7, {"a": a}, frozenset("bc"))
    assert node.run(fetch(NAME, most=0), 0) == Fetched(7, {"a": a}, frozenset("bc"))


def test_registers_do_not_know_each_other(node: NodeState) -> None:
    wrote(node, 7, a=(1, ""))
    assert isinstance(node.run(store("another", 6, {"a": (1, "")}), 0), Acknowledged)


def test_a_node_that_loses_its_data_has_seen_no_token(node: NodeState) -> None:
    wrote(node, 7, a=(1, ""))
    node.forget()
    assert node.run(fetch(NAME), 0) == Fetched(0, {})
    assert isinstance(wrote(node, 1), Acknowledged)
