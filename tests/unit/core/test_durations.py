"""Durations that cannot work: one true sentence each, and before anything is acquired."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_redlock import AsyncRedlock, Redlock
from celery_redlock.core import client_of
from celery_redlock.errors import ConfigurationError

NO_DURATIONS = [
    *(math.nan, -math.inf, 10**5000, 1e300, -1, True, "5", [5], timedelta(days=-1), timedelta.max),
]
IDS = ["nan", "-inf", "10**5000", "1e300", "-1", "bool", "str", "list", "negative", "longest"]


def _lock(redlock: Redlock, value: Any) -> None:
    with redlock.lock("k", max_hold=value):
        pass


def _lock_async(redlock: Redlock, value: Any) -> None:
    async def hold() -> None:
        async with AsyncRedlock("memory://durations") as other, other.lock("k", max_hold=value):
            pass

    asyncio.run(hold())


CALLS: dict[str, Callable[[Redlock, Any], Any]] = {
    "ttl": lambda redlock, value: redlock.acquire("k", ttl=value),
    "wait": lambda redlock, value: redlock.acquire("k", wait=value),
    "at_least_for": lambda redlock, value: redlock.acquire("k", at_least_for=value),
    "max_hold": _lock,
    "max_hold of asyncio": _lock_async,
    "ttl of the client": lambda redlock, value: Redlock("memory://x", ttl=value),
    "max_ttl": lambda redlock, value: Redlock("memory://x", max_ttl=value),
    "node_timeout": lambda redlock, value: Redlock("memory://x", node_timeout=value),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", NO_DURATIONS, ids=IDS)
def test_a_client_refuses_it_by_name_and_acquires_nothing(
    redlock: Redlock, call: str, value: Any
) -> None:
    with pytest.raises(ConfigurationError, match=call.split()[0]) as caught:
        CALLS[call](redlock, value)
    assert len(str(caught.value)) < 300
    redlock.acquire("k").release()


@pytest.mark.parametrize("value", NO_DURATIONS, ids=IDS)
def test_a_lease_is_not_watched_or_extended_for_it(redlock: Redlock, value: Any) -> None:
    lease = redlock.acquire("k")
    with pytest.raises(ConfigurationError, match="max_hold"):
        redlock.watch(lease, max_hold=value)
    with pytest.raises(ConfigurationError, match="ttl"):
        lease.extend(value)


@pytest.mark.parametrize("ttl", [0.1, 61, math.inf])
def test_a_ttl_out_of_range_is_refused_with_the_range(redlock: Redlock, ttl: float) -> None:
    with pytest.raises(ConfigurationError, match=rf"ttl={ttl} s is not between 0.2 s and max_ttl"):
        redlock.acquire("k", ttl=ttl)


@pytest.mark.parametrize("value", [timedelta(seconds=5), 5, 5.0])
def test_a_timedelta_is_taken_wherever_seconds_are(
    redlock_memory_nodes: list[str], value: Any
) -> None:
    options = {"ttl": value, "max_ttl": 6 * value, "node_timeout": value}
    with Redlock(redlock_memory_nodes, **options) as redlock:
        with redlock.lock("k", ttl=value, wait=value, max_hold=value) as lease:
            lease.extend(value)
            assert lease.ttl == 5
        redlock.acquire("k", at_least_for=value).release()
        assert client_of(redlock).settings.max_ttl == 30


@pytest.mark.parametrize("value", [timedelta(0), 0, 0.0])
def test_no_wait_and_no_minimum_are_zero(redlock: Redlock, value: Any) -> None:
    redlock.acquire("k", wait=value, at_least_for=value).release()
    redlock.acquire("k").release()


def test_a_hold_without_end_is_infinite(redlock: Redlock) -> None:
    with redlock.lock("k", max_hold=math.inf) as lease:
        assert lease.is_valid


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait": -1}, "wait=-1 is not 0 or more seconds."),
        ({"at_least_for": -1}, "at_least_for=-1 is not 0 or more seconds."),
        ({"wait": 10**400}, "wait is longer than 100 years; give less."),
    ],
)
def test_a_duration_that_is_out_of_range_is_told_in_one_true_sentence(
    redlock: Redlock, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        redlock.acquire("k", **options)
    assert str(caught.value) == message
