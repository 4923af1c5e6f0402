"""
Keys that several may hold at once, and keys with a maximum number of grants per period.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from celery_redlock.errors import ConfigurationError, LockKeyError
from celery_redlock.protocol.keys import MAX_SLOTS, Key
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import UNITS

_NUMBER = r"\d+(?:\.\d+)?"
_RATE = re.compile(rf"\s*({_NUMBER})\s*(?:/\s*({_NUMBER})?\s*([smhd]))?\s*", re.ASCII)

#: Seconds of the shortest part into which a period is cut.
_SHORTEST_PART = 0.1

#: A slot is kept longer than its period, by this share of it and at least this many seconds: bodies
#: begin at different times after their grants, and clocks differ.
_MARGIN, _SHORTEST_MARGIN = 0.02, 0.02

#: Seconds, about thirty years: nodes count milliseconds in 64 bits.
_LONGEST_PERIOD = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Limit:
    """
    A lock key that several holders may have at once.

    Guarantee: the key never has more than `limit` valid leases, under the assumptions of `Redlock`.
    It is a different lock from the same key without a limit. Limit: callers that give different
    limits for one key each keep to their own.

    Attributes:
        key: the lock key, or a template for it as in `lock_key`.
        limit: how many may hold the key, from 1 to 128. In `lock_key` it may also be a function of
            the task's arguments.
    """

    key: str
    limit: int | Callable[..., int]

    def slots_and_period(self) -> tuple[int, int]:
        """Return its slots, and 0 because it has no period; errors as `checked_limit`."""
        label = f"Limit({shortened(_text(self.key))!r}, {self.limit!r:.40})"
        return checked_limit(self.limit, label), 0


@dataclass(frozen=True, slots=True)
class Rate:
    """
    A lock key with a maximum number of grants per period. A release does not free it early.

    Guarantee: at most `rate` grants in any window of one period, under the assumptions of
    `Redlock`. Limit: a body that starts long after its grant may start closer to the next one; to
    allow for the usual delays, a slot stays taken for 2 % longer, and for at least 20 ms longer. A
    node that loses its data is quarantined for `max_ttl`, and may then grant a slot again. If the
    period is longer than `max_ttl`, and another node had not granted that slot, the period may get
    more grants.

    Attributes:
        key: the lock key, or a template for it as in `lock_key`.
        rate: how many grants per period: `"10/s"`, `"100/m"`, `"5/h"`, `"1/d"` or `"20/10s"`.
            `"0.5/s"` is one in two seconds. A period of more than 128 grants is cut into equal
            parts: `"500/m"` is 125 in any 15 seconds. A number is a rate per second, or per period
            of the length `per`.
        per: length of the period in seconds, for a `rate` that is a number.
    """

    key: str
    rate: str | float
    per: float | timedelta | None = None

    def slots_and_period(self) -> tuple[int, int]:
        """Return its slots, and the ms for which each stays taken; errors as `checked_rate`."""
        per = "" if self.per is None else f", per={self.per!r:.40}"
        label = f"Rate({shortened(_text(self.key))!r}, {self.rate!r:.40}{per})"
        return checked_rate(self.rate, label, self.per)


def limited_key(spec: Limit | Rate, prefix: str = "") -> Key:
    """Return the key of a limit or a rate, or raise `LockKeyError` or `ConfigurationError`."""
    slots, period_ms = spec.slots_and_period()
    return Key.of(prefix, spec.key, slots, period_ms)


def checked_limit(limit: Any, label: str) -> int:
    """Return a limit, or raise a `ConfigurationError` whose message begins with `label`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_SLOTS:
        raise ConfigurationError(
            f"{label} is not a limit; give a whole number from 1 to {MAX_SLOTS}."
        )
    return limit


def checked_rate(rate: Any, label: str, per: Any = None) -> tuple[int, int]:
    """
    Return the number of slots that a rate needs, and the ms for which each stays taken.

    Args:
        rate: a rate, or a number.
        label: names it in an error.
        per: length of the period in seconds, if the rate is a number.

    Raises:
        ConfigurationError: it is not a valid rate; the message begins with `label`.
    """
    found = None if isinstance(rate, bool) else _RATE.fullmatch(str(rate))
    number, seconds = float(found[1]) if found else 0.0, _period(found, per)
    if number in (0.0, math.inf) or not seconds:
        raise ConfigurationError(
            f"{label} is not a valid rate; use a number per s, m, h or d, such as '10/s', '100/m', "
            "'5/h' or '20/10s'; a number alone is per second."
        )
    if number != int(number):
        number, seconds = 1.0, seconds / number
    if seconds > _LONGEST_PERIOD:
        raise ConfigurationError(
            f"{label} is less than once in {_LONGEST_PERIOD:,} seconds; give a higher rate."
        )
    # Consecutive parts make up the period, so no window of its length has more than all of them.
    parts = math.ceil(number / MAX_SLOTS)
    slots, seconds = int(number / parts), seconds / parts
    if seconds < _SHORTEST_PART:
        raise ConfigurationError(
            f"{label} is too high: at most {MAX_SLOTS} in {_SHORTEST_PART:g} s are possible. Use "
            "several keys, each with a part of the rate."
        )
    kept = seconds + max(_SHORTEST_MARGIN, _MARGIN * seconds)
    return slots, math.ceil(kept * 1000)


def _period(found: re.Match[str] | None, per: Any) -> float:
    """Return the length of a period in seconds; 0 if there is none."""
    if found is None:
        return 0.0
    _, several, unit = found.groups()
    if per is None:
        return float(several or 1) * UNITS[unit or "s"]
    seconds = per.total_seconds() if isinstance(per, timedelta) else per
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return float(seconds) if is_number and not unit and 0 < seconds <= _LONGEST_PERIOD else 0.0


def _text(key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise LockKeyError(f"A lock key is a str that is not empty: {key!r:.80}.")
    return key
