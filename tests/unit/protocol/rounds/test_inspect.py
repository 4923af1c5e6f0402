"""A look ends when a quorum agrees on every key, or when nobody else can answer."""

from __future__ import annotations

from celery_redlock.protocol.rounds import InspectRound, Phase
from celery_redlock.protocol.votes import Failed, KeyState, KeyStates, NotHeld

FAILED = Failed("no answer")


def seen(*owners: str | None, counter: int = 7) -> KeyStates:
    return KeyStates(tuple(KeyState(owner, 5.0, counter) for owner in owners))


def inspect(*votes: KeyStates | Failed | NotHeld, nodes: int = 5) -> InspectRound:
    round_ = InspectRound(nodes)
    for node, vote in enumerate(votes):
        round_.vote(node, vote, 0.0)
    return round_


def owners(round_: InspectRound) -> list[str | None]:
    return [records[0].owner if records else None for records in round_.key_states()]


def test_a_look_ends_when_a_quorum_agrees() -> None:
    round_ = inspect(seen("a"), seen("a"), seen("a"))
    assert (round_.phase, owners(round_)) == (Phase.GRANTED, ["a"])


def test_a_look_waits_for_more_while_no_quorum_agrees() -> None:
    assert inspect(seen("a"), seen("a"), seen("b"), seen("b")).phase is Phase.VOTING


def test_a_look_waits_until_a_quorum_agrees_on_every_key() -> None:
    round_ = inspect(seen("a", "b"), seen("a", "b"), seen("a", "c"))
    assert round_.phase is Phase.VOTING
    assert round_.vote(3, seen("a", "b"), 0.0) is Phase.GRANTED
    assert owners(round_) == ["a", "b"]


def test_what_no_quorum_has_is_held_by_nobody() -> None:
    round_ = inspect(seen("a"), seen("a"), seen("b"), seen("b"), seen(None))
    assert (round_.phase, owners(round_)) == (Phase.GRANTED, [None])


def test_a_silent_node_may_be_of_the_holders_quorum() -> None:
    round_ = inspect(seen("a"), seen("a"), FAILED, seen(None), seen(None))
    assert (round_.phase, owners(round_)) == (Phase.GRANTED, ["a"])


def test_what_a_silent_node_cannot_bring_to_a_quorum_is_held_by_nobody() -> None:
    round_ = inspect(seen("a"), FAILED, seen(None), seen(None), seen("b"))
    assert (round_.phase, owners(round_)) == (Phase.GRANTED, [None])


def test_the_records_are_those_of_the_owner_that_the_quorum_has() -> None:
    round_ = inspect(seen("b"), seen("a", counter=1), seen("a", counter=2), seen("a", counter=3))
    assert [record.counter for record in round_.key_states()[0]] == [1, 2, 3]


def test_a_quorum_that_answers_beside_failed_nodes_is_enough() -> None:
    assert inspect(seen("a"), FAILED, seen("a"), FAILED, seen("a")).phase is Phase.GRANTED
