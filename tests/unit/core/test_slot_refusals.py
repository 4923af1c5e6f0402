"""What an error says of a key with a limit or a rate that refused an attempt."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from celery_redlock import LockContended
from celery_redlock.core.attempt import AcquireParams, Attempt
from celery_redlock.core.failures import not_acquired_error
from celery_redlock.core.settings import client_settings
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.rounds import SlotRound
from celery_redlock.protocol.votes import KeyHolder, Refused, Vote

LIMIT = Key.of("", "key", 2)
RATE = Key.of("", "key", 1, 1000)
NODES = ("a", "b", "c")


def error_of(key: Key, owners: Sequence[str]) -> LockContended:
    """Return the error of an attempt; on each node, one of these has the slots."""
    round_ = SlotRound(
        len(NODES),
        sent_at=0.0,
        ttl=10.0,
        drift_factor=0.01,
        places=(key.slots,),
        rates=(0,) if key.period_ms else (),
    )
    for node, owner in enumerate(owners):
        holders = tuple(KeyHolder(slot, f"{owner} {slot}", 5.0) for slot in range(key.slots))
        vote: Vote = Refused(holders, turn_in=3.0 if key.period_ms else 0.0)
        round_.vote(node, vote, 0.0)
    params = AcquireParams(
        settings=client_settings(3, ttl=10.0, key_prefix="", guard=False),
        keys=(key,),
        ttl=10.0,
        label="",
    )
    attempt = Attempt("owner", round_, None, frozenset())  # type: ignore[arg-type]
    error = not_acquired_error(attempt, params, NODES, 0.0)
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
