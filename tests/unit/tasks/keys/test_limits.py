"""From a call to its keys with a limit or a rate."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_redlock import Limit, Rate
from celery_redlock.errors import LockKeyError
from celery_redlock.tasks.keys.key_maker import KeyMaker
from tests.unit.tasks.keys.test_key_maker import TASK, key_of

ONE_MORE = "name those with a limit in lock_key, as Limit('key', 5) or Rate('key', '9/m')"


def keys_of(spec: Any = None, *args: Any, limit: Any = None, rate: Any = None) -> list[Any]:
    """Return each key with its slots and its period; a plain key alone."""
    made = KeyMaker(TASK, spec, limit, rate).keys_for(args or (1,), {}, "")
    return [(key.text, key.slots, key.period_ms) if key.slots else key.text for key in made]


async def awaited(account_id):
    return 5


def test_without_a_lock_key_a_limit_is_for_the_tasks_name() -> None:
    assert keys_of(limit=5) == [("bank.settle", 5, 0)]


def test_without_a_lock_key_a_rate_is_for_the_tasks_name() -> None:
    assert keys_of(rate="100/m") == [("bank.settle", 100, 61_200)]


def test_a_limit_and_a_rate_are_two_locks_of_one_name() -> None:
    assert keys_of("k", limit=5, rate="10/s") == [("k", 5, 0), ("k", 10, 1_020)]


def test_true_keeps_the_digest_of_the_arguments_under_a_limit() -> None:
    assert keys_of(True, limit=5) == [(key_of(True, 1), 5, 0)]


def test_a_limit_is_for_the_key_of_a_template() -> None:
    assert keys_of("a:{account_id}", 7, limit=5) == [("a:7", 5, 0)]


def test_a_limit_is_for_the_key_that_a_function_returns() -> None:
    assert keys_of(lambda account_id: f"a:{account_id}", 7, limit=5) == [("a:7", 5, 0)]


@pytest.mark.parametrize(
    "limit",
    [
        lambda amount: amount,
        lambda account_id, amount: amount,
        lambda account_id, amount, *, note: amount,
        lambda amount, other=None: amount,
        lambda **given: given["amount"],
    ],
)
def test_a_function_gives_the_limit_from_the_arguments_that_it_names(limit: Any) -> None:
    assert keys_of(None, 1, 7, limit=limit) == [("bank.settle", 7, 0)]


def test_each_limit_in_a_list_has_a_function_of_its_own() -> None:
    spec = [Limit("a", lambda account_id: account_id), Limit("b", lambda amount: amount)]
    assert keys_of(spec, 3, 4) == [("a", 3, 0), ("b", 4, 0)]


def test_a_list_has_plain_keys_limits_and_rates() -> None:
    spec = ["account:{account_id}", Limit("tenant:{amount}", 5), Rate("stripe", "10/s")]
    assert keys_of(spec, 1, 2) == ["account:1", ("tenant:2", 5, 0), ("stripe", 10, 1_020)]


def test_a_function_may_return_limits_and_rates() -> None:
    made = keys_of(lambda account_id: ["a", Limit("t", account_id), Rate("s", "10/s")], 3)
    assert made == ["a", ("t", 3, 0), ("s", 10, 1_020)]


def test_a_plain_key_a_limit_and_a_rate_of_one_name_are_three_locks() -> None:
    assert keys_of([Limit("k", 3), "k", Rate("k", "5/s")]) == [("k", 3, 0), "k", ("k", 5, 1_020)]


def test_two_rates_of_one_name_both_count() -> None:
    spec = [Rate("k", "10/s"), Rate("k", "100/m")]
    assert keys_of(spec) == [("k", 10, 1_020), ("k", 100, 61_200)]


@pytest.mark.parametrize("limits", [(3, 5), (5, 3)])
def test_of_two_limits_for_one_key_the_lower_one_counts(limits: tuple[int, int]) -> None:
    assert keys_of([Limit("k", limit) for limit in limits]) == [("k", 3, 0)]


def test_a_long_key_keeps_its_limit() -> None:
    ((key, slots, _),) = keys_of("{account_id}", "x" * 600, limit=5)
    assert (len(key), slots) == (512, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": awaited}, "lock_limit: the function awaited is a coroutine function, which is "
         "not awaited; use def"),
        ({"limit": lambda nobody: 5}, "lock_limit: the function <lambda> names 'nobody', which the "
         "task does not have; its arguments are: account_id, amount, note"),
        ({"limit": 5, "spec": ["a", "b"]}, ONE_MORE),
        ({"limit": 5, "spec": Limit("a", 3)}, ONE_MORE),
        ({"rate": "5/s", "spec": [Rate("a", "3/s")]}, ONE_MORE),
        ({"spec": Limit("t", 0)}, "Limit('t', 0) is not a limit"),
        ({"spec": Limit("t:{nobody}", 5)}, "names 'nobody'"),
        ({"spec": Limit(lambda account_id: "t", 5)}, "is not a template; give a str"),
        ({"spec": Limit("", 5)}, "cannot be empty"),
        ({"spec": Rate("t", "2000/s")}, "Rate('t', '2000/s') is too high"),
        ({"spec": Limit("t", awaited)}, "lock_key: the function awaited is a coroutine function"),
    ],
)  # fmt: skip
def test_a_limit_that_cannot_work_is_refused_at_declaration(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LockKeyError, match=re.escape(message)) as caught:
        KeyMaker(TASK, **options)
    assert str(caught.value).startswith("task 'bank.settle': ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"limit": lambda account_id: "5"},
            "Limit('bank.settle', '5') is not a limit; give a whole",
        ),
        ({"limit": lambda account_id: account_id["x"]}, "lock_limit <lambda> failed: TypeError"),
        ({"spec": lambda account_id: ["a", "b"], "limit": 5}, f"returned 'a', 'b'; {ONE_MORE}"),
        ({"spec": lambda account_id: Limit("t", 0)}, "Limit('t', 0) is not a limit"),
        ({"spec": lambda account_id: Rate("t", "x")}, "Rate('t', 'x') is not a valid rate"),
        ({"spec": lambda account_id: Limit("redlock-meta:guard", 5)}, "reserved"),
    ],
)
def test_a_call_whose_limit_cannot_work_is_refused_by_name(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LockKeyError, match=re.escape(message)) as caught:
        KeyMaker(TASK, **options).keys_for((1,), {}, "")
    assert str(caught.value).startswith("task 'bank.settle': ")


def test_a_function_returns_the_same_limit_in_the_publisher_and_in_the_worker() -> None:
    """It gets a tuple as the list that a worker receives."""
    maker = KeyMaker(TASK, None, lambda account_id: len(account_id) + isinstance(account_id, list))
    sent, received = maker.keys_for(((1, 2),), {}, ""), maker.keys_for(([1, 2],), {}, "")
    assert [key.slots for key in sent if key.slots] == [3]
    assert [key.slots for key in received if key.slots] == [3]
