"""
What a client is asked for: checked, and said to nobody yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from celery_redlock.core.attempt import Attempt, Terms
from celery_redlock.core.checks import checked_keys, checked_seconds
from celery_redlock.core.failures import failure
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.reserving import Reserving
from celery_redlock.core.waiting import Patience, RetryPolicy, checked_policy
from celery_redlock.errors import ConfigurationError, LockContended
from celery_redlock.protocol import Phase

SHORTEST_TTL = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """
    A lock that is asked for, checked.

    Attributes:
        names: its keys as they were asked for.
        terms: what the nodes are asked.
        patience: for how long it is tried.
        at_least_for: seconds for which it stays taken even if it is released earlier.
    """

    names: tuple[str, ...]
    terms: Terms
    patience: Patience
    at_least_for: float


class Wishing(Reserving):
    """
    The part of a client that knows what may be asked for.

    Attributes:
        ttl: default lease length in seconds.
        policy: how to wait between tries, where a call does not say.
    """

    ttl: float
    policy: RetryPolicy

    def wish(
        self,
        names: Sequence[str],
        extras: Sequence[str] = (),
        *,
        ttl: float | timedelta | None = None,
        wait: float | timedelta = 0.0,
        retry: RetryPolicy | None = None,
        label: str = "",
        at_least_for: float | timedelta = 0.0,
        reservation: Reservation | None = None,
        final: Callable[[LockContended], bool] | None = None,
    ) -> Wish:
        """Check what `take` is asked for, and say it to nobody yet."""
        names = tuple(names)
        terms = self._terms(
            names,
            self.ttl if ttl is None else self.checked_ttl(ttl),
            label,
            extras=extras,
            previous=reservation,
        )
        seconds = checked_seconds("wait", wait) if wait else 0.0

        return Wish(
            names=names or tuple(extras),
            terms=terms,
            patience=Patience(
                wait=seconds,
                policy=self.policy if retry is None else checked_policy(retry),
                now=self.transport.now,
                final=None if final is None else self._hopeless(terms, seconds, final),
            ),
            at_least_for=checked_seconds("at_least_for", at_least_for) if at_least_for else 0.0,
        )

    def _hopeless(
        self, terms: Terms, wait: float, final: Callable[[LockContended], bool]
    ) -> Callable[[Attempt], bool]:
        """Let `final` judge attempts by the error that they would end with."""

        def hopeless(made: Attempt) -> bool:
            if made.phase is not Phase.CONTENDED:
                return False
            error = failure(made, terms, self.key_prefix, self.transport.names, wait)
            return isinstance(error, LockContended) and final(error)

        return hopeless

    def checked_ttl(self, ttl: float | timedelta) -> float:
        """Return a lease length in seconds, or raise `ConfigurationError`."""
        seconds = checked_seconds("ttl", ttl)
        if SHORTEST_TTL <= seconds <= self.max_ttl:
            return seconds
        raise ConfigurationError(
            f"ttl={seconds:g} s is not between {SHORTEST_TTL:g} s and max_ttl={self.max_ttl:g} s. "
            "A longer lease needs a larger max_ttl in every client of these nodes; a lease that is "
            "renewed (lock, watch) may be short however long the work takes."
        )

    def _terms(
        self,
        names: tuple[str, ...],
        ttl: float,
        label: str,
        *,
        extras: Sequence[str] = (),
        previous: Reservation | None = None,
    ) -> Terms:
        keys = checked_keys(self.key_prefix, names, extras)
        return self._terms_for(keys, ttl, label, previous)
