"""
Checks of keys, durations, settings, functions that are options, and fencing tokens.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from celery_redlock.core.limits import Limit, Rate, limited_key
from celery_redlock.errors import ConfigurationError, InvalidFencingToken, LockKeyError
from celery_redlock.protocol.keys import META_PREFIX, Key, check_key_count
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import MAX_TOKEN

#: The keys that a caller names.
LockKeys: TypeAlias = str | Limit | Rate | Sequence[str | Limit | Rate]

#: The same, and `Key` values.
Name: TypeAlias = str | Limit | Rate | Key

#: Seconds; a shorter lease would expire while slow nodes still answer.
SHORTEST_TTL = 0.2
#: 100 years in seconds; nodes refuse much longer TTLs, and no caller needs them.
LONGEST = 100 * 365.25 * 86_400


def checked_keys(prefix: str, key: LockKeys | Sequence[Name]) -> tuple[Key, ...]:
    """
    Return the keys that one or several names mean, each once; the smallest of its limits holds.

    Args:
        prefix: key prefix of the client.
        key: the names.

    Raises:
        LockKeyError: a name cannot be a lock key.
        ConfigurationError: a limit or rate cannot work.
    """
    names: tuple[Any, ...]
    if isinstance(key, str | Limit | Rate):
        names = (key,)
    elif isinstance(key, bytes) or not isinstance(key, Iterable):
        raise LockKeyError(
            f"A lock key is a str or several, not {type(key).__name__}: {key!r:.80}."
        )
    else:
        names = tuple(key)
    keys = each_once(_key(prefix, name) for name in names)
    check_key_count(sum(key.holders for key in keys))
    return keys


def each_once(keys: Iterable[Key]) -> tuple[Key, ...]:
    """Return each key once, with the smallest of its limits."""
    found: dict[Key, Key] = {}
    for key in keys:
        if key not in found or key.slots < found[key].slots:
            found[key] = key
    return tuple(found.values())


def _key(prefix: str, name: Name) -> Key:
    if isinstance(name, Key):
        return name
    if isinstance(name, Limit | Rate):
        return limited_key(name, prefix)
    if not isinstance(name, str):
        raise LockKeyError(f"A lock key is a str, not {type(name).__name__}: {name!r:.80}.")
    return Key.of(prefix, name)


def checked_records(records: Iterable[str | Key]) -> tuple[Key, ...]:
    """Return records of the lock's own, each once, or raise `LockKeyError`."""
    keys = tuple(dict.fromkeys(key if isinstance(key, Key) else Key.read(key) for key in records))
    for key in keys:
        if not key.is_record:
            raise LockKeyError(
                f"{shortened(key.stored)!r} is a lock key, not a reserved key; pass it as a key."
            )
    return keys


def checked_ttl(ttl: float | timedelta, max_ttl: float) -> float:
    """Return a lease length in seconds, or raise `ConfigurationError`."""
    seconds = _number_of_seconds("ttl", ttl)
    if SHORTEST_TTL <= seconds <= max_ttl:
        return seconds
    raise ConfigurationError(
        f"ttl={seconds:g} s is not between {SHORTEST_TTL:g} s and max_ttl={max_ttl:g} s. A longer "
        "lease needs a larger max_ttl in every client of these nodes; a lease that is extended "
        "(lock, watch) may be short however long the work takes."
    )


def checked_seconds(name: str, value: float | timedelta, *, may_be_zero: bool = False) -> float:
    """Return a duration in seconds, or raise `ConfigurationError` under its name."""
    seconds = _number_of_seconds(name, value)
    if may_be_zero and seconds == 0:
        return 0.0
    if not seconds > 0:
        least = "0 or more seconds" if may_be_zero else "a positive number of seconds"
        raise ConfigurationError(f"{name}={seconds:g} is not {least}.")
    if seconds > LONGEST:
        raise ConfigurationError(f"{name} is longer than 100 years; give less.")
    return seconds


def checked_hold(value: float | timedelta) -> float:
    """Return how long a lease is extended, in seconds; `math.inf` for no end."""
    return math.inf if value == math.inf else checked_seconds("max_hold", value)


def as_seconds(value: Any) -> float | None:
    """Return a duration as seconds, infinite if too large for a float; None for other values."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _number_of_seconds(name: str, value: Any) -> float:
    seconds = as_seconds(value)
    if seconds is None:
        raise ConfigurationError(
            f"{name} is a number of seconds or a timedelta, not {type(value).__name__}."
        )
    return seconds


def checked_prefix(value: str) -> str:
    """Return a key prefix, or raise `ConfigurationError`."""
    if not isinstance(value, str):
        raise ConfigurationError(f"key_prefix is a str, not {type(value).__name__}.")
    if value.startswith(META_PREFIX):
        raise ConfigurationError(
            f"key_prefix={value!r} falls under {META_PREFIX!r}, which is reserved for the lock's "
            "own records."
        )
    return value


def checked_drift_factor(value: float, name: str = "drift_factor") -> float:
    """Return a drift factor, or raise `ConfigurationError` under its name."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 0.5:
        raise ConfigurationError(
            f"{name}={value!r} is not a number from 0 to below 0.5. The default is 0.01; "
            "0.1 suits hosts whose clocks are slewed fast."
        )
    return float(value)


def checked_token(token: Any) -> int:
    """
    Return `token` if it can be a fencing token: an int from 1 to 2**53 - 1.

    Raises:
        InvalidFencingToken: it is something else; bool is not an int here.
    """
    # A subclass of int may compare and print as it likes.
    if type(token) is not int:
        raise InvalidFencingToken(
            f"A fencing token is an int, not {type(token).__name__}: {token!r:.80}. "
            "Give lease.fencing_token as it is."
        )
    if not 1 <= token <= MAX_TOKEN:
        # Python refuses to print very long numbers.
        shown = token if token.bit_length() < 128 else f"a number of {token.bit_length()} bits"
        raise InvalidFencingToken(
            f"A fencing token is between 1 and 2**53 - 1, not {shown}. "
            "Give lease.fencing_token as it is."
        )
    return token


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
