"""What one node does with the commands for a register."""

from __future__ import annotations

import pytest

from celery_redlock.protocol.commands import read_register, write_register
from celery_redlock.protocol.node_model import Identity, ModelNode
from celery_redlock.protocol.votes import (
    Acknowledged,
    RegisterContents,
    Superseded,
    VersionedValue,
    Vote,
)

NAME = "redlock-meta:register:r"


@pytest.fixture
def node() -> ModelNode:
    return ModelNode(Identity("x", "x"))


def wrote(node: ModelNode, token: int, **fields: tuple[int, str] | None) -> Vote:
    return node.run(write_register(NAME, token, fields), 0)


def has(node: ModelNode) -> dict[str, VersionedValue]:
    vote = node.run(read_register(NAME), 0)
    assert isinstance(vote, RegisterContents)
    return dict(vote.fields)


def test_a_register_that_nobody_wrote_is_empty(node: ModelNode) -> None:
    assert node.run(read_register(NAME), 0) == RegisterContents(0, {})


def test_what_is_written_is_told_with_the_token_that_wrote_it(node: ModelNode) -> None:
    assert isinstance(wrote(node, 7, a=(3, "text"), b=(4, "")), Acknowledged)
    assert node.run(read_register(NAME), 0) == RegisterContents(
        7, {"a": VersionedValue(7, 3, "text"), "b": VersionedValue(7, 4, "")}
    )


def test_an_older_token_is_refused_and_changes_nothing(node: ModelNode) -> None:
    wrote(node, 7, a=(3, "new"))
    assert wrote(node, 6, a=(9, "old"), b=(9, "old")) == Superseded(7)
    assert has(node) == {"a": VersionedValue(7, 3, "new")}


def test_a_promise_refuses_older_tokens_from_then_on(node: ModelNode) -> None:
    assert node.run(read_register(NAME, 7), 0) == RegisterContents(7, {})
    assert wrote(node, 6, a=(1, "")) == Superseded(7)
    assert node.run(read_register(NAME, 6), 0) == Superseded(7)
    assert isinstance(wrote(node, 7, a=(1, "")), Acknowledged)


def test_a_fetch_without_a_token_promises_nothing(node: ModelNode) -> None:
    wrote(node, 7)
    assert node.run(read_register(NAME), 0) == RegisterContents(7, {})
    assert isinstance(wrote(node, 7, a=(1, "")), Acknowledged)


def test_what_runs_late_does_not_replace_a_newer_version(node: ModelNode) -> None:
    wrote(node, 7, a=(3, "newer"))
    assert isinstance(wrote(node, 7, a=(2, "older")), Acknowledged)
    assert has(node) == {"a": VersionedValue(7, 3, "newer")}


def test_the_same_version_may_be_written_again(node: ModelNode) -> None:
    wrote(node, 7, a=(3, "first"))
    wrote(node, 7, a=(3, "second"))
    assert has(node)["a"].text == "second"


def test_a_newer_token_writes_whatever_the_version(node: ModelNode) -> None:
    wrote(node, 7, a=(30, "before"))
    wrote(node, 8, a=(2, "after"))
    assert has(node) == {"a": VersionedValue(8, 2, "after")}


def test_a_field_is_deleted_and_the_token_stays(node: ModelNode) -> None:
    wrote(node, 7, a=(1, ""), b=(1, ""))
    wrote(node, 8, a=None, c=None)
    assert has(node) == {"b": VersionedValue(7, 1, "")}
    assert wrote(node, 7) == Superseded(8)


def test_only_the_fields_asked_for_are_told(node: ModelNode) -> None:
    wrote(node, 7, a=(1, ""), b=(1, ""), c=(1, ""))
    assert node.run(read_register(NAME, 0, ["c", "x", "a"]), 0) == RegisterContents(
        7, {"c": VersionedValue(7, 1, ""), "a": VersionedValue(7, 1, "")}
    )


def test_what_makes_an_answer_too_long_is_named_but_the_first_is_always_told(
    node: ModelNode,
) -> None:
    wrote(node, 7, a=(1, "é" * 4), b=(1, "12345678"), c=(1, ""))
    a, c = VersionedValue(7, 1, "é" * 4), VersionedValue(7, 1, "")
    assert node.run(read_register(NAME, max_bytes=16), 0) == RegisterContents(
        7, {"a": a, "c": c}, frozenset("b")
    )
    assert node.run(read_register(NAME, max_bytes=15), 0) == RegisterContents(
        7, {"a": a}, frozenset("bc")
    )
    assert node.run(read_register(NAME, max_bytes=0), 0) == RegisterContents(
        7, {"a": a}, frozenset("bc")
    )


def test_registers_do_not_know_each_other(node: ModelNode) -> None:
    wrote(node, 7, a=(1, ""))
    assert isinstance(node.run(write_register("another", 6, {"a": (1, "")}), 0), Acknowledged)


def test_a_node_that_loses_its_data_has_seen_no_token(node: ModelNode) -> None:
    wrote(node, 7, a=(1, ""))
    node.lose_data()
    assert node.run(read_register(NAME), 0) == RegisterContents(0, {})
    assert isinstance(wrote(node, 1), Acknowledged)
