"""
One text for all equal values, and different texts for values that differ.

The Python class of a value does not count, so that a publisher and a worker agree under every
serializer: numbers that are equal are one number (`1`, `1.0`, `True`,
`Decimal("1.00")`), a list is a tuple, an enum is its value, a dataclass or pydantic model is the
mapping of its fields, an aware datetime is its instant, and the names in a mapping are the texts
that JSON makes of them (`{1: x}` is `{"1": x}`). In doubt, two values count as equal: a false match
makes one task wait, a false difference lets two run at once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from numbers import Integral
from typing import Any
from uuid import UUID

from celery_redlock.errors import LockKeyError
from celery_redlock.tasks.keys.received import MAX_DEPTH, alike, endless, json_name, reduced

PLAIN_DIGITS = 40
MICROSECOND = timedelta(microseconds=1)


def canonical(value: Any, _depth: int = 0) -> str:
    """
    Return the text of `value`; equal texts mean equal values, also in nested containers.

    Every part carries its kind and length, so no separator inside a value can shift a boundary.

    Raises:
        LockKeyError: the value, or one inside it, has no form that another process would find
            again. The message names the type; the caller adds the argument.
    """
    value = reduced(value)
    leaf = scalar(value)
    if leaf is not None:
        kind, text = leaf
        return f"{kind}{len(text)}:{text}"
    if _depth == MAX_DEPTH:
        raise endless()
    deeper = _depth + 1
    if isinstance(value, list | tuple):
        return _joined("l", [canonical(item, deeper) for item in value])
    if isinstance(value, set | frozenset):
        return _joined("e", sorted({canonical(item, deeper) for item in value}))
    if isinstance(value, Enum):
        return canonical(value.value, _depth)
    items = _mapping(value)
    parts = {
        canonical(name if type(name) is str else json_name(name), deeper): item
        for name, item in items.items()
    }
    if len(parts) < len(items):
        raise alike(items)
    return _joined("m", [name + canonical(parts[name], deeper) for name in sorted(parts)])


def scalar(value: Any) -> tuple[str, str] | None:
    """
    Return kind and readable text of a value without parts, None for anything else.

    Raises:
        LockKeyError: the value is a not-a-number, which is not even equal to itself.
    """
    if isinstance(value, str):
        return "s", str.__str__(value)
    if value is None:
        return "0", "None"
    if isinstance(value, Integral | float | Decimal):
        return "n", _number(value)
    if isinstance(value, bytes | bytearray):
        return "b", value.hex()
    if isinstance(value, UUID):
        return "u", str(value)
    if isinstance(value, datetime):
        return _datetime(value)
    if isinstance(value, date):
        return "d", value.isoformat()
    if isinstance(value, time):
        return "h", value.isoformat()
    if isinstance(value, timedelta):
        return "p", _number(Decimal(f"{value // MICROSECOND}e-6"))
    return scalar(value.value) if isinstance(value, Enum) else None


def digest(text: str) -> str:
    """Return 128 bits of BLAKE2b as hex."""
    # Lone surrogates are legal in Python strings and in JSON, and must not stop a task.
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def is_model(value: Any) -> bool:
    """Return whether `value` is a pydantic model or model class, without importing pydantic."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    if base is None:
        return False
    return issubclass(value, base) if isinstance(value, type) else isinstance(value, base)


def model_fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass or pydantic model instance by name, None for the rest."""
    if isinstance(value, type):
        return None
    if is_dataclass(value):
        # A field that is not compared (a cache, a handle) is not part of the value.
        return {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
    return dict(value) if is_model(value) else None


def _mapping(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    found = model_fields(value)
    if found is None:
        kind = type(value)
        raise LockKeyError(
            f"holds a {kind.__module__}.{kind.__qualname__}, which has no form that stays the same "
            "in another process; use its id or another plain part of it"
        )
    return found


def _joined(kind: str, parts: list[str]) -> str:
    return f"{kind}{len(parts)}:{''.join(parts)}"


def _number(value: Any) -> str:
    """Write equal numbers alike: plain digits where that stays short, else digits and exponent."""
    if isinstance(value, Integral):
        value = int(value)
        if -(10**PLAIN_DIGITS) < value < 10**PLAIN_DIGITS:
            return str(value)
    elif isinstance(value, float):
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        # The decimal digits that people wrote, 0.1, not the binary fraction behind them.
        value = "nan" if math.isnan(value) else float.__repr__(value)
    number = Decimal(value)
    if number.is_nan():
        raise LockKeyError("holds a not-a-number, which is equal to nothing, not even to itself")
    if number.is_infinite():
        return "inf" if number > 0 else "-inf"
    sign, digits, exponent = number.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    stripped = text.rstrip("0")
    if not stripped:
        return "0"
    # is_infinite() and is_nan() are ruled out, so the exponent is a number.
    exponent = int(exponent) + len(text) - len(stripped)
    minus = "-" if sign else ""
    if exponent >= 0 and len(stripped) + exponent <= PLAIN_DIGITS:
        return f"{minus}{stripped}{'0' * exponent}"
    if -PLAIN_DIGITS <= exponent < 0:
        padded = stripped.rjust(1 - exponent, "0")
        return f"{minus}{padded[:exponent]}.{padded[exponent:]}"
    return f"{minus}{stripped}e{exponent}"


def _datetime(value: datetime) -> tuple[str, str]:
    # Called on the base class: subclasses print themselves in ways of their own.
    if value.utcoffset() is None:
        return "t", datetime.isoformat(value.replace(tzinfo=None))
    try:
        return "T", datetime.isoformat(value.astimezone(UTC))
    except OverflowError:
        return "T", datetime.isoformat(value)
