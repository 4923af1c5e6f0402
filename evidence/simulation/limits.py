"""
Keys with a limit and keys with a rate: how their grants are counted.
"""

from __future__ import annotations

from typing import Any

from celery_redlock.core.lease import holding_of
from celery_redlock.core.limits import Limit, Rate
from celery_redlock.protocol.keys import Key
from evidence.simulation.plan import Plan

#: Seconds of every rate of a plan, and for how long nodes keep a slot of it.
PERIOD, KEPT = 1.0, 1.02

#: Nodes count whole milliseconds: one is lost at each end.
_ROUNDED = 0.002


def limits_of_plan(plan: Plan) -> list[Limit]:
    """Return the keys of a plan that several may hold."""
    return [Limit(f"limit{number}", most) for number, most in enumerate(plan.limits)]


def rates_of_plan(plan: Plan) -> list[Rate]:
    """Return the keys of a plan that only so many may get in a second."""
    return [Rate(f"rate{number}", f"{most}/s") for number, most in enumerate(plan.rates)]


def limited_keys(lease: Any) -> list[Key]:
    """Return the keys of a lease that have a limit or a rate."""
    return [key for key in holding_of(lease).asked_for if key.slots]


def places_of(lease: Any) -> tuple[str, ...]:
    """Return the keys of a lease as nodes store them, of those with a limit or rate its slots."""
    holding = holding_of(lease)
    return holding.names_of(holding.asked_for)


class Limits:
    """
    When the keys with a rate were got.

    A start counts at the instant at which its process has the lease. The nodes keep its slot from
    when they grant it, a little longer than the period; an attempt that takes more than that little
    counts at its beginning, which is what the nodes can promise.
    """

    def __init__(self, plan: Plan) -> None:
        fastest = max(rate for rate, _ in plan.servers)
        self._usual = KEPT / fastest - PERIOD - _ROUNDED
        self._starts: dict[str, list[float]] = {}

    def count_starts(self, key: Key, began: float, now: float) -> int:
        """Add a start; return how many there are in the period that ends with it."""
        since = now - PERIOD
        starts = [start for start in self._starts.get(key.stored, ()) if start > since]
        self._starts[key.stored] = [*starts, now if now - began < self._usual else began]
        return len(starts) + 1
