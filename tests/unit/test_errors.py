"""Errors travel through result backends and name what an operator needs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from celery_redlock import errors
from celery_redlock.core.failures import Refusal
from celery_redlock.protocol.keys import Key

EXAMPLES = [
    errors.RedlockError("something"),
    errors.ConfigurationError("wrong"),
    errors.LockKeyError("bad key"),
    errors.LockNotAcquired("not taken"),
    errors.LockContended("held", "k", "owner", 1.5, True),
    errors.QuorumUnavailable("no quorum", "k", {"redis://a:1/0": "refused"}),
    errors.LeaseLost("lost", "k", errors.LossReason.EXPIRED),
    errors.AmbiguousCall("two", ("id-1", "id-2")),
    errors.DuplicateTask("twice", "id-1"),
    errors.StaleFencingToken("stale", "ledger", 7, 5),
    errors.FencedResourceMissing("no such row", "account 7"),
    errors.FenceRecordCorrupt("garbage", "account 7"),
    errors.InvalidFencingToken("not a token"),
    errors.InvalidResourceName("a fence record"),
]


def named(error: Exception) -> str:
    return type(error).__name__


def test_every_error_of_the_module_is_tried_here() -> None:
    assert {named(error) for error in EXAMPLES} == set(errors.__all__) - {"LossReason"}


@pytest.mark.parametrize("error", EXAMPLES, ids=named)
@pytest.mark.parametrize("travel", ["pickle", "args", "copy"])
def test_an_error_survives_travel(error: errors.RedlockError, travel: str) -> None:
    routes: dict[str, Callable[[], errors.RedlockError]] = {
        "pickle": lambda: pickle.loads(pickle.dumps(error)),
        "args": lambda: type(error)(*error.args),
        "copy": lambda: copy.copy(error),
    }
    arrived = routes[travel]()
    assert (type(error), str(error), error.args, vars(error)) == (
        type(arrived),
        str(arrived),
        arrived.args,
        vars(arrived),
    )


@pytest.mark.parametrize("error", EXAMPLES, ids=named)
def test_an_error_can_be_made_of_nothing(error: errors.RedlockError) -> None:
    assert str(type(error)()) == ""


def test_all_errors_have_one_root() -> None:
    assert all(isinstance(error, errors.RedlockError) for error in EXAMPLES)


def test_not_acquired_is_contended_or_unavailable() -> None:
    assert issubclass(errors.LockContended, errors.LockNotAcquired)
    assert issubclass(errors.QuorumUnavailable, errors.LockNotAcquired)


def test_an_invalid_token_is_a_value_error_too() -> None:
    assert issubclass(errors.InvalidFencingToken, ValueError)


def test_what_travels_to_another_process_has_texts_and_no_part_of_this_package() -> None:
    key = Key.of("redlock:", "key")
    error = Refusal(key, "owner", 1.0, False, (key,), (key,)).error("held")
    travelled = pickle.loads(pickle.dumps(error))
    assert (travelled.key, travelled.keys) == ("key", ("key",))
    assert (error.refusal is None, travelled.refusal) == (False, None)
