"""
Checks of the arguments of a fence: the client, path or store that it will write through.

A fence that cannot work is refused when it is made, not at the first write. Objects that create
their methods dynamically (`__getattr__`: proxies, mocks, clients of an application not yet bound)
are accepted.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery_redlock.errors import ConfigurationError


def kind_of(value: Any) -> str:
    """Name the type of an argument for an error, which must not show confidential content."""
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else _full_name(kind)


def refuse(taker: str, wanted: str, value: Any, remedy: str) -> ConfigurationError:
    """Return the error for an argument that cannot work."""
    return ConfigurationError(f"{taker} takes {wanted}, not {kind_of(value)}. {remedy}")


def require_methods(taker: str, wanted: str, value: Any, names: tuple[str, ...], how: str) -> None:
    """Raise `ConfigurationError` unless a value is an object with these methods."""
    if not isinstance(value, type) and (
        hasattr(type(value), "__getattr__")
        or all(callable(getattr(value, name, None)) for name in names)
    ):
        return
    raise refuse(taker, wanted, value, how)


def require_call(
    taker: str, wanted: str, value: Any, count: int, how: str, *, method: str = "__call__"
) -> None:
    """Raise `ConfigurationError` unless a value, or a method of it, takes that many arguments."""
    called: Callable[..., Any] | None = value if method == "__call__" else getattr(value, method)
    if not callable(called):
        raise refuse(taker, wanted, value, how)
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * count)
    except TypeError:
        raise refuse(taker, wanted, value, how) from None


def checked_path(taker: str, path: Any) -> Path:
    """Return a path without symbolic links and relative parts, or raise `ConfigurationError`."""
    if isinstance(path, str | os.PathLike) and isinstance(os.fspath(path), str) and str(path):
        return Path(path).resolve()
    raise refuse(taker, "a path as str or os.PathLike", path, "Give it the name of a file.")


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
