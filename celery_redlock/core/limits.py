"""
Keys that several may hold at once, and keys that only so many may get in a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_redlock.errors import ConfigurationError, LockKeyError
from celery_redlock.protocol.keys import MAX_SLOTS, LimitedKey
from celery_redlock.protocol.texts import shortened

_UNITS = {"s": 1, "m": 60, "h": 3600}
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:/\s*([smh]))?\s*", re.ASCII)

#: Part of a period, and seconds, by which a slot is kept longer: a body begins later than its slot
#: was granted, by a time that is not the same for any two, and clocks differ.
_MARGIN, _SHORTEST_MARGIN = 0.02, 0.02

#: Seconds, about thirty years: nodes count milliseconds in 64 bits.
_LONGEST_PERIOD = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Limit:
    """
    A lock key that several may hold at once.

    Guarantee: never more than `limit` valid leases on the key, under the assumptions of `Redlock`.
    It is another lock than the same key without a limit. Limit: those who name different numbers
    for one key each keep to their own.

    Attributes:
        key: the lock key, or a template of it as in `lock_key`.
        limit: how many may hold it, from 1 to 128; in `lock_key` also a function of the task's
            arguments.
    """

    key: str
    limit: int | Callable[..., int]

    def as_key(self) -> LimitedKey:
        """Return the key, or raise `LockKeyError` or `ConfigurationError`."""
        label = f"Limit({shortened(_text(self.key))!r}, {self.limit!r:.40})"
        return LimitedKey(self.key, checked_limit(self.limit, label))


@dataclass(frozen=True, slots=True)
class Rate:
    """
    A lock key that only so many may get in a time; a holder does not give it back.

    Guarantee: any time as long as the period has at most so many grants, wherever it begins, under
    the assumptions of `Redlock`. Limit: a body that begins much later than its grant may be closer
    to the next one; slots are kept for 2 % longer, at least 20 ms, to allow for usual delays. A
    node that loses its data is quarantined for `max_ttl` and may then grant a slot again; where
    another node had not granted it, a longer period may have more grants.

    Attributes:
        key: the lock key, or a template of it as in `lock_key`.
        rate: as Celery writes it: `"100/m"`, `"10/s"`, `"5/h"`; a number is per second. At most
            128; a higher rate needs a shorter period.
    """

    key: str
    rate: str | float

    def as_key(self) -> LimitedKey:
        """Return the key, or raise `LockKeyError` or `ConfigurationError`."""
        label = f"Rate({shortened(_text(self.key))!r}, {self.rate!r:.40})"
        return rate_key(self.key, self.rate, label)


def checked_limit(limit: Any, label: str) -> int:
    """Return a limit, or raise `ConfigurationError` that begins with `label`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_SLOTS:
        raise ConfigurationError(f"{label} is no limit; give a whole number from 1 to {MAX_SLOTS}.")
    return limit


def rate_key(key: str, rate: Any, label: str) -> LimitedKey:
    """Return a key with a rate, or raise `ConfigurationError` that begins with `label`."""
    found = None if isinstance(rate, bool) else _RATE.fullmatch(str(rate))
    number = float(found[1]) if found else 0.0
    seconds: float = _UNITS[(found[2] if found else None) or "s"]
    if 0 < number < 1:  # "0.5/s" is one in two seconds
        number, seconds = 1, seconds / number
    if not found or not number or (number <= MAX_SLOTS and number != int(number)):
        raise ConfigurationError(
            f"{label} is no rate; give a number of times in a second, minute or hour, such as "
            "'10/s', '100/m' or '5/h'."
        )
    if number > MAX_SLOTS:
        fewer = _shorter(number, seconds)
        raise ConfigurationError(f"{label} is more than {MAX_SLOTS} times; {fewer}")
    if seconds > _LONGEST_PERIOD:
        raise ConfigurationError(
            f"{label} is less than once in {_LONGEST_PERIOD:,} seconds; give a higher rate."
        )
    kept = seconds + max(_SHORTEST_MARGIN, _MARGIN * seconds)
    return LimitedKey(key, int(number), math.ceil(kept * 1000))


def _shorter(number: float, seconds: float) -> str:
    for unit, length in (("m", 60), ("s", 1)):
        fewer = number * length / seconds
        if length < seconds and 1 <= fewer <= MAX_SLOTS:
            return f"give about as many in a shorter time: '{math.floor(fewer)}/{unit}'."
    return "give several keys, each with a part of it."


def named_keys(keys: Sequence[Any], limit: Any = None) -> tuple[str, ...]:
    """
    Return lock keys, of which some may be a `Limit` or a `Rate`.

    Args:
        keys: as a caller names them.
        limit: of a single key that has no limit of its own; None: none.

    Raises:
        ConfigurationError: a limit or a rate cannot work, or `limit` has no key to apply to.
    """
    if limit is not None:
        if len(keys) != 1 or not isinstance(keys[0], str):
            raise LockKeyError(
                "limit= is for one key; of several, name those with a limit as "
                "Limit('key', 5) or Rate('key', '100/m')."
            )
        return (LimitedKey(keys[0], checked_limit(limit, f"limit={limit!r:.40}")),)
    return tuple(key.as_key() if isinstance(key, Limit | Rate) else key for key in keys)


def _text(key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise LockKeyError(f"A lock key is a str that is not empty: {key!r:.80}.")
    return key
