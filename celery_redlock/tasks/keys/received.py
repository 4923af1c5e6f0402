"""
The arguments of a call as every worker receives them, whatever the serializer.

JSON is the strictest of Celery's serializers: what it changes (names in mappings, tuples, classes
of texts and numbers) counts as changed under all of them, and on both sides. So a publisher, a
worker, a retry and `lock_holder` make the same key from one call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, time
from typing import Any

from celery_redlock.errors import LockKeyError

MAX_DEPTH = 64
#: Types whose values every serializer returns as they are.
PLAIN = frozenset({str, int, float, bool, type(None)})
#: Types that JSON writes without asking a value for its form; a class has none of its own.
_NATIVE = (str, int, float, list, tuple, dict, type)
#: Names that are no text, as JSON writes them.
JSON_WORDS = {True: "true", False: "false", None: "null", "inf": "Infinity", "-inf": "-Infinity"}
JSON_WORDS["nan"] = "NaN"


def as_received(value: Any, _depth: int = 0) -> Any:
    """
    Return `value` in the one form that a publisher and each worker can give a key function.

    It has lists, dicts with texts as names, and plain texts and numbers, as JSON returns them;
    values that JSON does not have stay as they are. It is the same on both sides of any serializer.

    Raises:
        LockKeyError: two names of a mapping are one in JSON, or the nesting has no end.
    """
    value = reduced(value)
    if type(value) in PLAIN:
        return value
    if _depth == MAX_DEPTH:
        raise endless()
    if isinstance(value, dict | list | tuple | Mapping):
        deeper = _depth + 1
        if isinstance(value, list | tuple):
            return [as_received(item, deeper) for item in value]
        named = {json_name(name): as_received(item, deeper) for name, item in value.items()}
        if len(named) < len(value):
            raise alike(value)
        return named
    return _plain(value)


def reduced(value: Any) -> Any:
    """Return what kombu's JSON writes of an object with `__json__`; other values as they are."""
    for _ in range(MAX_DEPTH):
        is_native = type(value) in PLAIN or isinstance(value, _NATIVE)
        reduce = None if is_native else getattr(value, "__json__", None)
        if reduce is None:
            return value
        value = reduce()
    raise endless()


def named(value: Mapping[Any, Any], name: str) -> list[Any]:
    """Return the items of a mapping whose names JSON writes as `name`: one, or none."""
    found = [key for key in value if (key if type(key) is str else json_name(key)) == name]
    if len(found) > 1:
        raise alike(value)
    return [value[key] for key in found]


def json_name(name: Any) -> Any:
    """Return a mapping's name as JSON writes it; a name that JSON cannot write, as it is."""
    if isinstance(name, str):
        return str.__str__(name)
    if name is None or isinstance(name, bool):
        return JSON_WORDS[name]
    if isinstance(name, int):
        try:
            return int.__repr__(name)
        except ValueError:
            raise LockKeyError("has a number with thousands of digits as a name") from None
    if isinstance(name, float):
        return float.__repr__(name) if math.isfinite(name) else JSON_WORDS[str(float(name))]
    return name


def _plain(value: Any) -> Any:
    """Return a text, number or datetime without its class, which a serializer may keep or not."""
    for kind, plain in ((str, str.__str__), (int, int), (float, float)):
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, datetime):
        return datetime.fromisoformat(datetime.isoformat(value))
    if isinstance(value, time):
        return time.fromisoformat(time.isoformat(value))
    return value


def alike(value: Mapping[Any, Any]) -> LockKeyError:
    """Return the error about two names that are one name once JSON has written them."""
    first: dict[Any, Any] = {}
    for name in value:
        other = first.setdefault(json_name(name), name)
        if other is not name:
            return LockKeyError(
                f"has the names {other!r:.80} and {name!r:.80}, which are one name in JSON, so a "
                "worker may get only one of them; use names of one type"
            )
    return LockKeyError("has two names that are one name in JSON; use names of one type")


def endless() -> LockKeyError:
    return LockKeyError(f"is nested deeper than {MAX_DEPTH} levels or contains itself")
