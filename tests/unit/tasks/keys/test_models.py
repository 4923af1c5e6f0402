"""Arguments with pydantic models inside: a model and the mapping that travels make one key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, NamedTuple, Optional

import pydantic
import pytest
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from celery_redlock.tasks.keys.key_maker import KeyMaker
from tests.support.commands import keys_of
from tests.unit.tasks.keys.test_key_maker import task_of


class Item(pydantic.BaseModel):
    a: int
    b: int = 5
    day: date = date(2026, 3, 10)


class Other(pydantic.BaseModel):
    a: int
    c: int = 6


@dataclass
class Box:
    item: Item
    label: str = "box"


class Pair(NamedTuple):
    item: Item
    count: int = 1


class Row(TypedDict):
    item: Item


class Opaque:
    """A class that pydantic has no schema for."""


def in_list(value: list[Item]) -> None: ...
def in_sequence(value: Sequence[Item]) -> None: ...
def in_tuple(value: tuple[Item, int]) -> None: ...
def in_dict(value: dict[str, Item]) -> None: ...
def in_optional(value: Optional[list[Item]] = None) -> None: ...  # noqa: UP045  # people write it
def in_union(value: list[Item] | None = None) -> None: ...
def nested(value: dict[str, list[Item | None]]) -> None: ...
def in_dataclass(value: Box) -> None: ...
def in_dataclasses(value: list[Box]) -> None: ...
def in_named_tuple(value: Pair) -> None: ...
def in_typed_dict(value: Row) -> None: ...
def variadic(*value: Item) -> None: ...
def by_name(**value: Item) -> None: ...
def plain(value: Item) -> None: ...


#: A body, and how it has an item in its argument.
PLACES = [
    (in_list, lambda item: [item]),
    (in_sequence, lambda item: [item]),
    (in_tuple, lambda item: (item, 1)),
    (in_dict, lambda item: {"x": item}),
    (in_optional, lambda item: [item]),
    (in_union, lambda item: [item]),
    (nested, lambda item: {"x": [item, None]}),
    (in_dataclass, lambda item: {"item": item, "label": "box"}),
    (in_dataclasses, lambda item: [{"item": item, "label": "box"}]),
    (in_named_tuple, lambda item: [item, 1]),
    (in_typed_dict, lambda item: {"item": item}),
    (variadic, lambda item: item),
    (plain, lambda item: item),
]


@pytest.mark.parametrize(("body", "around"), PLACES, ids=[body.__name__ for body, _ in PLACES])
def test_a_model_and_what_travels_in_its_place_make_one_key(body: Any, around: Any) -> None:
    maker = KeyMaker(task_of(body))
    item = Item(a=1)
    forms = [
        item,
        Item(a=1, b=5),
        item.model_dump(mode="json"),
        item.model_dump(mode="json", exclude_unset=True),
    ]
    assert len({maker.keys_for((around(form),), {}, "") for form in forms}) == 1
    assert maker.keys_for((around(Item(a=2)),), {}, "") != maker.keys_for((around(item),), {}, "")


def test_models_by_names_that_the_task_does_not_list_make_the_key_of_their_mappings() -> None:
    maker = KeyMaker(task_of(by_name))
    assert maker.keys_for((), {"x": Item(a=1)}, "") == maker.keys_for((), {"x": {"a": 1}}, "")


def test_a_dataclass_and_what_travels_in_its_place_make_one_key() -> None:
    maker, box = KeyMaker(task_of(in_dataclass)), Box(Item(a=1))
    travels = {**asdict(box), "item": {"a": 1}}
    assert maker.keys_for((box,), {}, "") == maker.keys_for((travels,), {}, "")


@pytest.mark.parametrize(
    "spec", [lambda value: f"item:{value[0].b}", "item:{value[0].b}"], ids=["function", "template"]
)
def test_a_key_is_made_of_the_models_on_both_sides(spec: Any) -> None:
    maker = KeyMaker(task_of(in_list), spec)
    for item in ({"a": 1}, Item(a=1)):
        assert maker.keys_for(([item],), {}, "") == keys_of(("item:5",))


def one_of_two(value: list[Item | Other]) -> None: ...
def lists_of_two(value: list[Item] | list[Other]) -> None: ...
def unreadable(value: list[Item]) -> None: ...
def opaque(value: dict[Opaque, Item]) -> None: ...


@pytest.mark.parametrize("body", [one_of_two, lists_of_two])
def test_of_two_models_that_fit_none_is_assumed(body: Any) -> None:
    maker = KeyMaker(task_of(body))
    assert maker.keys_for(([{"a": 1}],), {}, "") != maker.keys_for(([{"a": 1, "b": 5}],), {}, "")


@pytest.mark.parametrize(("body", "value"), [(unreadable, ["x"]), (opaque, {"x": {"a": 1}})])
def test_what_does_not_fit_the_annotation_is_left_for_the_body_to_refuse(
    body: Any, value: Any
) -> None:
    assert KeyMaker(task_of(body)).keys_for((value,), {}, "")
