"""
A table of rules, explored by the facts that it reads.

The facts of a state are those that have been read so far. A rule that reads another one leads to a
state for each of its values; facts that no rule reads make no difference, so every combination is
covered.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, get_args, get_type_hints

from celery_redlock.tasks.rules.facts import first_match
from evidence.models.explorer import Found, Label, ViolationError
from evidence.models.tables import TableSetting

#: Facts that have been read: name and value, in the order in which they were read.
Known = tuple[tuple[str, Any], ...]


class UnknownError(Exception):
    """A fact is read for the first time."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Partial:
    """Facts of which some are known; properties are those of the facts' type."""

    def __init__(self, properties: dict[str, Callable[[Any], Any]], known: Known) -> None:
        self._properties = properties
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name not in self._properties:
            raise UnknownError(name)
        return self._properties[name](self)


def properties_of(facts: type) -> dict[str, Callable[[Any], Any]]:
    """Return the functions of a type's properties."""
    found = inspect.getmembers(facts, lambda member: isinstance(member, property))
    return {name: member.fget for name, member in found}


def values_of(facts: type) -> dict[str, tuple[Any, ...]]:
    """Return what each fact may be."""
    hints = get_type_hints(facts)
    return {fact.name: tuple(_values(hints[fact.name])) for fact in fields(facts)}


def _values(hint: Any) -> Iterator[Any]:
    if isinstance(hint, types.UnionType):
        for part in get_args(hint):
            yield from _values(part)
    elif hint is type(None):
        yield None
    elif hint is bool:
        yield from (False, True)
    else:
        assert issubclass(hint, Enum)
        yield from hint


@dataclass(slots=True)
class Rules:
    """The model of one table."""

    setting: TableSetting
    reached: set[str] = field(default_factory=set)
    _values: dict[str, tuple[Any, ...]] = field(init=False)
    _properties: dict[str, Callable[[Any], Any]] = field(init=False)

    def __post_init__(self) -> None:
        self._values = values_of(self.setting.facts)
        self._properties = properties_of(self.setting.facts)

    def initial(self) -> Known:
        return ()

    def moves(self, known: Known) -> Iterator[Found]:
        try:
            self._decide(known)
        except UnknownError as unknown:
            for value in self._values[unknown.name]:
                then = (*known, (unknown.name, value))
                yield then, (f"{unknown.name} = {_name(value)}", ()), ()

    def _decide(self, known: Known) -> None:
        facts = Partial(self._properties, known)
        label: Label = ("decides", ())
        try:
            row = first_match(self.setting.rows, facts)
        except StopIteration:
            raise ViolationError(label, "no row matches") from None
        for promise, holds in self.setting.promises.items():
            if not holds(facts, row.then) and self.setting.possible(facts):
                raise ViolationError((f"{row.name}: {_name(row.then)}", ()), f"broken: {promise}")
        if row.name not in self.reached and self.setting.possible(facts):
            self.reached.add(row.name)


def _name(value: Any) -> str:
    return value.name if isinstance(value, Enum) else str(value)
