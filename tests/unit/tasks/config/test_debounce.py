"""What `lock_debounce` sets, and what contradicts it."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock import Limit, Rate
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.option_values import Debounce
from tests.unit.tasks.config.test_options import origins, refused, resolve


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, Debounce(5.0, math.inf)),
        (timedelta(minutes=1), Debounce(60.0, math.inf)),
        ((5, 60), Debounce(5.0, 60.0)),
        ([5, timedelta(minutes=1)], Debounce(5.0, 60.0)),
    ],
)
def test_it_is_a_time_or_a_time_and_a_maximum(value: Any, expected: Debounce) -> None:
    assert resolve(lock_debounce=value).debounce == expected


@pytest.mark.parametrize("value", [0, "5s", True, (), (5, 60, 3), (60, 5), (5, "a minute")])
def test_what_is_no_debounce_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"lock_debounce=.*; give "):
        resolve(lock_debounce=value)


WITH_BODIES = {"lock_mode": "until_and_while_executing"}


@pytest.mark.parametrize(
    ("options", "mode", "on_conflict"),
    [
        ({}, "until_executing", "requeue"),
        (WITH_BODIES, "until_and_while_executing", "requeue"),
        ({**WITH_BODIES, "lock_on_conflict": "stop"}, "until_and_while_executing", "stop"),
    ],
    ids=["alone", "with the mode whose bodies do not overlap", "with the policy that stops bodies"],
)
def test_it_sets_what_the_task_does_not_say(
    options: dict[str, Any], mode: str, on_conflict: str
) -> None:
    made = resolve(lock_debounce=5, **options)
    assert (made.mode, made.on_duplicate, made.on_conflict) == (mode, "replace", on_conflict)


def test_settings_for_all_tasks_do_not_contradict_it() -> None:
    conf = {
        "redlock_mode": "until_executed",
        "redlock_on_duplicate": "raise",
        "redlock_on_conflict": "skip",
        "redlock_starting_deadline": 60,
    }
    options = resolve(lock_debounce=5, conf=conf)
    assert (options.mode, options.on_duplicate) == ("until_executing", "replace")
    assert (options.on_conflict, options.starting_deadline) == ("requeue", None)


@pytest.mark.parametrize("value", [5, (5, 60), (0.5, 90.5)])
def test_it_is_shown_as_it_is_written(value: Any) -> None:
    assert repr(resolve(lock_debounce=value).debounce) == repr(value)


def test_options_that_it_sets_come_from_it() -> None:
    conf = {"redlock_starting_deadline": 60}
    found = origins(mode="until_executing", lock_debounce=5, conf=conf)
    of_it = {name for name, origin in found.items() if origin == "lock_debounce"}
    assert of_it == {"mode", "on_duplicate", "starting_deadline"}


def test_there_is_no_setting_for_all_tasks() -> None:
    with pytest.raises(ConfigurationError, match="redlock_debounce"):
        resolve(lock_key=True, conf={"redlock_debounce": 5})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lock_mode": "while_executing"}, "remove lock_mode"),
        ({"lock_mode": "until_executed"}, "remove lock_mode"),
        ({"lock_mode": "until_expired", "lock_window": 9}, "remove lock_mode"),
        ({"lock_on_duplicate": "existing"}, "lock_on_duplicate='existing' does not; remove it"),
        ({"lock_on_duplicate": "raise"}, "lock_on_duplicate='raise' does not; remove it"),
        ({"lock_on_duplicate": lambda task, error: "raise"}, "lets the newer call replace"),
        ({**WITH_BODIES, "lock_on_conflict": "skip"}, "'skip' would drop the newest call"),
        ({"lock_starting_deadline": 60}, "remove one of the two"),
        ({"lock_limit": 3}, "remove the limit"),
        ({"lock_rate": "5/m"}, "remove the limit"),
        ({"lock_key": Limit("k", 3)}, "remove the limit"),
        ({"lock_key": ["k", Rate("k", "5/m")]}, "remove the limit"),
    ],
)
def test_what_contradicts_it_is_refused_with_the_mend(
    options: dict[str, Any], message: str
) -> None:
    refused(message, lock_debounce=5, **options)


@given(
    quiet=st.floats(0.1, 100),
    more=st.floats(0, 100),
    first=st.floats(0, 1e6),
    after=st.floats(0, 1e6),
)
def test_a_call_is_due_no_earlier_than_it_is_made_and_no_later_than_the_burst_may_last(
    quiet: float, more: float, first: float, after: float
) -> None:
    debounce, made = Debounce(quiet, quiet + more), first + after
    due = debounce.due(made, first)
    assert made <= due <= max(made, first + debounce.at_most)
    assert due <= made + quiet
