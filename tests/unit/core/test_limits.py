"""Limits and rates are checked before anything is sent, and what is wrong is named."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_redlock import ConfigurationError, Limit, LockKeyError, Rate, Redlock
from celery_redlock.core.limits import checked_rate, limited_key
from celery_redlock.core.validation import checked_keys

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
        ("1.5/s", 1, 2 / 3),
        ("1/d", 1, 86_400),
        ("20/10s", 20, 10),
        ("3 / 0.5 h", 3, 1800),
        ("500/m", 125, 15),
        ("129/m", 64, 30),
        ("1000/s", 125, 1 / 8),
    ],
)
def test_a_rate_is_read_as_people_write_it(rate: Any, slots: int, seconds: float) -> None:
    found, period_ms = checked_rate(rate, "rate")
    assert found == slots
    assert seconds * 1000 < period_ms <= seconds * 1000 * 1.02 + 20


@pytest.mark.parametrize(
    ("keys", "slots"),
    [
        ([Limit("k", 4), Limit("k", 1)], [1]),
        ([Limit("k", 1), Limit("k", 4)], [1]),
        ([Rate("k", "2/s"), "k", Rate("k", "9/s")], [2, 0]),
    ],
)
def test_of_several_limits_of_a_key_in_one_call_the_smallest_holds(
    keys: list[Any], slots: list[int]
) -> None:
    assert [key.slots for key in checked_keys("redlock:", keys)] == slots


@pytest.mark.parametrize(
    "rate", ["", "x", "5/w", "-1/s", 0, "0/m", True, None, "1/0s", "1/2/s", "9" * 400]
)
def test_what_is_no_rate_is_named_with_one_that_is(rate: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a valid rate; use .* such as '10/s'"):
        checked_rate(rate, "rate")


@pytest.mark.parametrize("rate", [f"0.{'0' * 40}1/s", f"0.{'0' * 310}1/h"])
def test_a_rate_that_is_too_low_is_named_with_its_mend(rate: str) -> None:
    with pytest.raises(ConfigurationError, match="give a higher rate"):
        checked_rate(rate, "rate")


def test_a_rate_that_is_too_high_is_named_with_the_highest() -> None:
    with pytest.raises(ConfigurationError, match=r"too high: at most 128 in 0.1 s are possible\."):
        checked_rate("1281/s", "rate")


@pytest.mark.parametrize("rate", ["500/m", "129/m", "6000/m", "1279/s", "100000/d"])
def test_the_parts_of_a_period_together_have_no_more_than_the_rate(rate: str) -> None:
    number, _, unit = rate.partition("/")
    slots, kept_ms = checked_rate(rate, "rate")
    parts = {"s": 1, "m": 60, "h": 3600, "d": 86_400}[unit] * 1000 / kept_ms
    assert slots * parts <= int(number)


@pytest.mark.parametrize(("per", "seconds"), [(10, 10), (0.5, 0.5), (timedelta(minutes=2), 120)])
def test_a_rate_that_is_a_number_may_name_its_period(per: Any, seconds: float) -> None:
    assert Rate("api", 20, per=per).slots_and_period() == checked_rate(f"20/{seconds}s", "rate")


@pytest.mark.parametrize(
    ("rate", "per"), [("20/s", 10), (20, 0), (20, -1), (20, "10"), (20, True), (20, float("inf"))]
)
def test_a_period_that_cannot_be_is_named(rate: Any, per: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Rate\('api', .*, per=.*\) is not a valid rate"):
        Rate("api", rate, per=per).slots_and_period()


@pytest.mark.parametrize("limit", [0, -1, 129, 1.0, "5", True, max])
def test_what_is_no_limit_is_named_with_the_numbers_that_are(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="give a whole number from 1 to 128"):
        limited_key(Limit("key", limit))


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_limit_without_a_key_is_named(name: Any) -> None:
    for key in (Limit(name, 5), Rate(name, "1/s")):
        with pytest.raises(LockKeyError, match="str that is not empty"):
            limited_key(key)


def test_keys_with_and_without_limits_may_be_mixed() -> None:
    plain, limited, rated = checked_keys("", ["a", Limit("b", 5), Rate("c", "2/s")])
    assert (plain.slots, plain.period_ms) == (0, 0)
    assert (limited.slots, limited.period_ms) == (5, 0)
    assert (rated.slots, rated.period_ms > 1000) == (2, True)


def test_more_slots_than_a_lock_may_have_are_refused() -> None:
    keys = [Limit(f"k{number}", 128) for number in range(8)]
    with (
        Redlock(NODES) as redlock,
        pytest.raises(LockKeyError, match=r"at most 1,000 keys, .* 1,024"),
    ):
        redlock.acquire(keys)
