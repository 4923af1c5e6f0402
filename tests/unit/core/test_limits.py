"""Limits and rates are checked before anything is sent, and what is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import ConfigurationError, Limit, LockKeyError, Rate, Redlock
from celery_redlock.core.limits import named_keys, rate_key
from celery_redlock.protocol.keys import LimitedKey

NODES = "memory://limits"


@pytest.mark.parametrize(
    ("rate", "slots", "seconds"),
    [
        ("100/m", 100, 60),
        ("10/s", 10, 1),
        ("5/h", 5, 3600),
        (" 5 / m ", 5, 60),
        ("3", 3, 1),
        (3, 3, 1),
        (3.0, 3, 1),
        ("0.5/s", 1, 2),
        (0.1, 1, 10),
        ("0.5/m", 1, 120),
    ],
)
def test_a_rate_is_read_as_celery_writes_it(rate: Any, slots: int, seconds: int) -> None:
    key = rate_key("key", rate, "rate")
    assert (key, key.slots) == ("key", slots)
    assert seconds * 1000 < key.period_ms <= seconds * 1000 * 1.02 + 20


@pytest.mark.parametrize("rate", ["", "x", "5/d", "-1/s", 0, "0/m", True, None, "2.5/s", "1/2/s"])
def test_what_is_no_rate_is_named_with_one_that_is(rate: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"is no rate; give .* such as '10/s'"):
        rate_key("key", rate, "rate")


@pytest.mark.parametrize("rate", [f"0.{'0' * 40}1/s", f"0.{'0' * 310}1/h"])
def test_a_rate_that_is_too_low_is_named_with_its_mend(rate: str) -> None:
    with pytest.raises(ConfigurationError, match="give a higher rate"):
        rate_key("key", rate, "rate")


@pytest.mark.parametrize(
    ("rate", "advice"),
    [
        ("6000/m", "'100/s'"),
        ("200/h", "'3/m'"),
        ("129/m", "'2/s'"),
        ("1000/s", "several keys"),
        ("9" * 400, "several keys"),
    ],
)
def test_a_rate_that_is_too_high_is_named_with_a_shorter_period(rate: str, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=f"more than 128 times; .*{advice}"):
        rate_key("key", rate, "rate")


@pytest.mark.parametrize("limit", [0, -1, 129, 1.0, "5", True, max])
def test_what_is_no_limit_is_named_with_the_numbers_that_are(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="give a whole number from 1 to 128"):
        named_keys([Limit("key", limit)])


def test_an_option_that_is_no_limit_is_named() -> None:
    with Redlock(NODES) as redlock, pytest.raises(ConfigurationError, match="limit=129"):
        redlock.acquire("key", limit=129)


@pytest.mark.parametrize("keys", [["a", "b"], [Limit("a", 2)], [Rate("a", "1/s")]])
def test_the_option_is_for_one_key_that_has_no_limit_of_its_own(keys: list[Any]) -> None:
    with Redlock(NODES) as redlock, pytest.raises(LockKeyError, match="limit= is for one key"):
        redlock.acquire(keys, limit=5)


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_limit_without_a_key_is_named(name: Any) -> None:
    for key in (Limit(name, 5), Rate(name, "1/s")):
        with pytest.raises(LockKeyError, match="str that is not empty"):
            named_keys([key])


def test_keys_with_and_without_limits_may_be_mixed() -> None:
    plain, limited, rated = named_keys(["a", Limit("b", 5), Rate("c", "2/s")])
    assert not isinstance(plain, LimitedKey)
    assert isinstance(limited, LimitedKey)
    assert (limited.slots, limited.period_ms) == (5, 0)
    assert isinstance(rated, LimitedKey)
    assert (rated.slots, rated.period_ms > 1000) == (2, True)


def test_more_slots_than_a_lock_may_have_are_refused() -> None:
    keys = [Limit(f"k{number}", 128) for number in range(8)]
    with Redlock(NODES) as redlock, pytest.raises(LockKeyError, match="1,024 keys; at most 1,000"):
        redlock.acquire(keys)
