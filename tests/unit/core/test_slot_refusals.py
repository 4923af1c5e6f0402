"""What an error says of a key with a limit or a rate that refused an attempt."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from celery_redlock import LockContended
from celery_redlock.core.attempt import AcquireParams, Attempt
from celery_redlock.core.failures import Refusal, not_acquired_error
from celery_redlock.core.settings import client_settings
from celery_redlock.protocol.keys import GOES_FIRST, Key
from celery_redlock.protocol.rounds import SlotRound
from celery_redlock.protocol.votes import KeyHolder, Refused, Vote

ORDINARY = Key.of("", "ordinary")
LIMIT = Key.of("", "key", 2)
RATE = Key.of("", "key", 1, 1000)
NODES = ("a", "b", "c")


def error_of(key: Key, owners: Sequence[str]) -> LockContended:
    """Return the error of an attempt; on each node, one of these has the slots."""
    votes = [
        tuple(KeyHolder(slot, f"{owner} {slot}", 5.0) for slot in range(key.slots))
        for owner in owners
    ]
    return error_after([key], votes)


def error_after(keys: Sequence[Key], votes: Sequence[Sequence[KeyHolder]]) -> LockContended:
    """Return the error of an attempt that each node has refused, and named these holders."""
    rates = [at for at, key in enumerate(keys) if key.period_ms]
    round_ = SlotRound(
        len(NODES),
        sent_at=0.0,
        ttl=10.0,
        drift_factor=0.01,
        places=[len(key.places) for key in keys],
        rates=rates,
    )
    for node, holders in enumerate(votes):
        vote: Vote = Refused(tuple(holders), turn_in=3.0 if rates else 0.0)
        round_.vote(node, vote, 0.0)
    params = AcquireParams(
        settings=client_settings(3, ttl=10.0, key_prefix="", guard=False),
        keys=tuple(keys),
        ttl=10.0,
        label="",
    )
    attempt = Attempt(params, "owner", round_, None, frozenset())  # type: ignore[arg-type]
    error = not_acquired_error(attempt, NODES, 0.0)
    assert isinstance(error, LockContended)
    return error


def test_a_limit_that_others_hold_names_one_of_them() -> None:
    error = error_of(LIMIT, ["other"] * 3)
    assert (error.holder, error.split) == ("other 0", False)


def test_a_limit_whose_slots_rivals_share_is_no_conflict() -> None:
    assert error_of(LIMIT, NODES).split


def test_the_keys_that_rivals_share_are_named_for_who_waits() -> None:
    assert error_of(LIMIT, NODES).keys == ("key",)


@pytest.mark.parametrize("owners", [["other"] * 3, NODES], ids=["one", "several"])
def test_a_rate_names_its_turn_and_no_holder(owners: Sequence[str]) -> None:
    error = error_of(RATE, owners)
    assert (error.holder, error.expires_in, error.split) == (None, 3.0, False)


def both_taken(holder: str) -> list[KeyHolder]:
    """Return the holders of an ordinary key, and of a key with a limit, which expire later."""
    return [KeyHolder(0, holder, 3.0), KeyHolder(1, "slot 0", 9.0), KeyHolder(2, "slot 1", 9.0)]


def test_of_an_ordinary_key_and_one_with_a_limit_the_ordinary_one_is_named() -> None:
    error = error_after([ORDINARY, LIMIT], [both_taken("other")] * 3)
    assert (error.key, error.holder, error.keys) == ("ordinary", "other", ("ordinary",))


@pytest.mark.parametrize(
    "holders",
    [["other"] * 3, [f"{GOES_FIRST}{node}" for node in NODES]],
    ids=["one holder", "waiters that go first"],
)
def test_all_keys_that_a_quorum_refuses_are_waited_for(holders: Sequence[str]) -> None:
    error = error_after([ORDINARY, LIMIT], [both_taken(holder) for holder in holders])
    assert Refusal.of(error).refused == (ORDINARY, LIMIT)
