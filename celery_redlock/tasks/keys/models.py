"""
Arguments with pydantic models, read back from the mappings that travel in their place.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any

from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.keys.canonical import is_model


def model_readers(task: TaskLike, signature: inspect.Signature) -> dict[str, Callable[[Any], Any]]:
    """
    Return a reader for each parameter whose annotation has a pydantic model, also in containers.

    Celery sends a model as a mapping of JSON values; reading it back through the model makes the
    key in the worker equal to the key in the publisher, with the model's defaults filled in. A
    reader returns a value that does not fit as it is: the body raises its own error for that.

    An annotation that allows several models in one place has no reader: a mapping does not show
    which model it was.
    """
    try:
        hints = typing.get_type_hints(inspect.unwrap(task.run))
    except (NameError, AttributeError, TypeError):
        return {}
    readers = ((name, _reader(hints.get(name), p.kind)) for name, p in signature.parameters.items())
    return {name: reader for name, reader in readers if reader is not None}


def _reader(hint: Any, kind: Any) -> Callable[[Any], Any] | None:
    try:
        if not _has_model(hint, set()):
            return None
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return partial(_as_hint, _adapter(tuple[hint, ...]))
        if kind is inspect.Parameter.VAR_KEYWORD:
            return partial(_as_hint, _adapter(dict[str, hint]))
        models = [choice for choice in _choices(hint) if is_model(choice)]
        return partial(_as_model, models[0]) if models else partial(_as_hint, _adapter(hint))
    except Exception:
        return None  # several models in one place, or something that pydantic has no schema for


def _has_model(hint: Any, seen: set[Any]) -> bool:
    """
    Return whether an annotation has a model.

    Raises:
        LookupError: it allows several models in one place.
    """
    found = [choice for choice in _choices(hint) if _is_or_holds_model(choice, seen)]
    if len(found) > 1:
        raise LookupError(hint)
    return bool(found)


def _is_or_holds_model(choice: Any, seen: set[Any]) -> bool:
    if not isinstance(choice, type) or typing.get_args(choice):
        parts: Iterable[Any] = typing.get_args(choice)
    elif is_model(choice):
        return True
    elif choice in seen or not _has_fields(choice):
        return False
    else:
        seen.add(choice)
        parts = typing.get_type_hints(choice).values()
    found = [_has_model(part, seen) for part in parts]  # not lazily: any part may raise
    return any(found)


def _choices(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _has_fields(choice: type) -> bool:
    """Return whether a class is a dataclass, a named tuple or a typed dict."""
    return is_dataclass(choice) or hasattr(choice, "_fields") or hasattr(choice, "__total__")


def _adapter(hint: Any) -> Any:
    pydantic = sys.modules["pydantic"]
    try:
        return pydantic.TypeAdapter(hint, config={"arbitrary_types_allowed": True})
    except pydantic.PydanticUserError:
        return pydantic.TypeAdapter(hint)  # a class with a configuration of its own


def _as_model(model: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    try:
        return model.model_validate(value)
    except Exception:
        return value


def _as_hint(adapter: Any, value: Any) -> Any:
    try:
        return adapter.validate_python(value)
    except Exception:
        return value
