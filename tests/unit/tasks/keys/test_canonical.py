"""What counts as the same value, and what does not."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.errors import LockKeyError
from celery_redlock.tasks.keys.canonical import canonical

Pair = namedtuple("Pair", "x y")


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int
    y: int
    cache: Any = field(default_factory=object, compare=False)


class Order(pydantic.BaseModel):
    x: int
    y: int = 2


NUMBERS = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, width=32),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
)
LEAVES = st.one_of(
    st.none(),
    NUMBERS,
    st.text(),
    st.binary(),
    st.uuids(),
    st.datetimes(timezones=st.sampled_from([None, UTC])),
    st.dates(),
    st.times(),
)
KEYS = st.text().filter(lambda text: not text.startswith("__"))


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(children) | st.tuples(children) | st.dictionaries(KEYS, children)


VALUES = st.recursive(LEAVES, containers, max_leaves=12)


def as_lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [as_lists(item) for item in value]
    if isinstance(value, dict):
        return {name: as_lists(item) for name, item in value.items()}
    return value


@given(VALUES, VALUES)
def test_two_values_have_one_text_exactly_if_they_are_equal(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == (as_lists(one) == as_lists(other))


@given(NUMBERS, st.integers(min_value=-30, max_value=30))
def test_two_numbers_have_one_text_exactly_if_they_are_equal(one: Any, difference: int) -> None:
    if math.isinf(one):
        return
    with localcontext() as exact:
        exact.prec = 5000
        other = Decimal(repr(one) if isinstance(one, float) else one) + difference
    assert (canonical(one) == canonical(other)) == (difference == 0)


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_no_text_can_shift_a_boundary(one: list[str], other: list[str]) -> None:
    assert (canonical(one) == canonical(other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (1, Decimal("1.000")),
        (100, Decimal("1E+2")),
        (0.1, Decimal("0.1")),
        (10**60, Decimal("1E+60")),
        (1e300, Decimal("1E+300")),
        (math.inf, Decimal("Infinity")),
        ((1, 2), [1, 2]),
        (Pair(1, 2), [1, 2]),
        ({1, 2}, frozenset([2, 1])),
        ({"a": 1, "b": 2}, OrderedDict(b=2, a=1)),
        ({"a": 1}, MappingProxyType({"a": 1})),
        ({1: "a"}, {"1": "a"}),
        (b"ab", bytearray(b"ab")),
        (Color.RED, "red"),
        (Level.HIGH, 3),
        ({Color.RED: 1}, {"red": 1}),
        (Point(1, 2), {"x": 1, "y": 2}),
        (Order(x=1), {"x": 1, "y": 2}),
        (
            datetime(2024, 5, 1, 12, tzinfo=UTC),
            datetime(2024, 5, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        ),
        (timedelta(hours=1), timedelta(seconds=3600)),
    ],
)
def test_values_that_say_the_same_count_as_one(one: Any, other: Any) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (None, "None"),
        (b"ab", "ab"),
        (UUID(int=1), str(UUID(int=1))),
        (Decimal("0.1"), Decimal("0.10000000000000000000000000000000000001")),
        ([1, [2]], [[1], 2]),
        ([], {}),
        ({}, set()),
        ([1, 2], [2, 1]),
        ("\u00e9", "e\u0301"),  # composed and decomposed: kept as they are
        (date(2024, 5, 1), datetime(2024, 5, 1)),
        (datetime(2024, 5, 1, tzinfo=UTC), datetime(2024, 5, 1)),
        (time(12), "12:00:00"),
        (10**60, 10**60 + 1),
        ("\ud800", "\ud801"),
    ],
)
def test_values_that_differ_do_not_count_as_one(one: Any, other: Any) -> None:
    assert canonical(one) != canonical(other)


class Plain:
    pass


def _generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    "value",
    [object(), Plain(), Plain, int, len, lambda: 1, _generator(), ValueError("x"), 1j, range(3)],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_stable_form_is_refused_by_type(value: Any) -> None:
    with pytest.raises(LockKeyError, match=type(value).__name__) as caught:
        canonical({"deep": [value]})
    assert " at 0x" not in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, Decimal("NaN"), Decimal("sNaN")])
def test_not_a_number_is_refused(value: Any) -> None:
    with pytest.raises(LockKeyError, match="not-a-number"):
        canonical([value])


def _cycle() -> Any:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    return cycle


def _deep() -> Any:
    value: Any = 0
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize("make", [_cycle, _deep])
def test_endless_nesting_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(LockKeyError, match="nested deeper than 64 levels or contains itself"):
        canonical(make())


def test_an_integer_too_long_for_str_has_a_form() -> None:
    assert canonical(10**5000) == canonical(Decimal("1E+5000"))


def test_the_extremes_of_datetime_have_a_form() -> None:
    east = timezone(timedelta(hours=14))
    assert canonical(datetime.min.replace(tzinfo=east)) != canonical(datetime.max)


def test_a_small_decimal_context_does_not_round() -> None:
    exact = canonical([Decimal("1.23456789"), timedelta(microseconds=1234567)])
    with localcontext() as context:
        context.prec = 2
        assert canonical([Decimal("1.23456789"), timedelta(microseconds=1234567)]) == exact
