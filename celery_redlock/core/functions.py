"""
Checks of functions that are given as options, so that a wrong one is refused at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from celery_redlock.errors import ConfigurationError


def check_function(function: Callable[..., Any], *arguments: str) -> Callable[..., Any]:
    """
    Return a function that can be called with these positional arguments.

    Limit: a callable that shows no signature, as some written in C, is returned unchecked.

    Raises:
        ConfigurationError: it cannot, or it is a coroutine function, which nothing would await. The
            text continues "lock_on_lost=f ...".
    """
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError("is a coroutine function, which is not awaited; use def")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function
    try:
        signature.bind(*arguments)
    except TypeError as exc:
        raise ConfigurationError(
            f"is called with ({', '.join(arguments)}) but takes {signature}: {exc}"
        ) from None
    return function


def check_on_lost(on_lost: object) -> None:
    """Raise `ConfigurationError` unless this is None or can be called with a lease."""
    if on_lost is None:
        return
    name = getattr(on_lost, "__qualname__", repr(on_lost))
    if not callable(on_lost):
        raise ConfigurationError(
            f"on_lost={name} cannot be called; give a function that takes the lease. 'interrupt' "
            "and 'flag' are for AsyncRedlock.lock."
        )
    try:
        check_function(on_lost, "lease")
    except ConfigurationError as exc:
        raise ConfigurationError(f"on_lost={name} {exc}.") from None
