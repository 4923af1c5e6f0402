"""
What a client is asked for: checked, and said to nobody yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from celery_redlock.core.attempt import AcquireParams, Attempt
from celery_redlock.core.failures import not_acquired_error
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.reservations import Reservations
from celery_redlock.core.retry import RetryBudget, RetryPolicy, checked_policy
from celery_redlock.core.validation import checked_node_keys, checked_seconds
from celery_redlock.errors import ConfigurationError, LockContended
from celery_redlock.protocol import Phase

SHORTEST_TTL = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireRequest:
    """
    A lock that is asked for, checked.

    Attributes:
        keys: its keys as they were asked for.
        terms: what the nodes are asked.
        budget: for how long it is tried.
        at_least_for: seconds for which it stays taken even if it is released earlier.
    """

    keys: tuple[str, ...]
    params: AcquireParams
    budget: RetryBudget
    at_least_for: float


class RequestBuilder(Reservations):
    """
    The part of a client that knows what may be asked for.

    Attributes:
        ttl: default lease length in seconds.
        policy: how to wait between tries, where a call does not say.
    """

    ttl: float
    policy: RetryPolicy

    def _build_request(
        self,
        keys: Sequence[str],
        reserved_keys: Sequence[str] = (),
        *,
        ttl: float | timedelta | None = None,
        wait: float | timedelta = 0.0,
        retry: RetryPolicy | None = None,
        label: str = "",
        at_least_for: float | timedelta = 0.0,
        reservation: Reservation | None = None,
        give_up_on: Callable[[LockContended], bool] | None = None,
    ) -> AcquireRequest:
        """Check what `acquire_for_task` is asked for, and say it to nobody yet."""
        keys = tuple(keys)
        params = self._build_params(
            keys,
            self.ttl if ttl is None else self.checked_ttl(ttl),
            label,
            reserved_keys=reserved_keys,
            previous=reservation,
        )
        seconds = checked_seconds("wait", wait) if wait else 0.0

        return AcquireRequest(
            keys=keys or tuple(reserved_keys),
            params=params,
            budget=RetryBudget(
                wait=seconds,
                policy=self.policy if retry is None else checked_policy(retry),
                now=self.transport.now,
                give_up_on=None
                if give_up_on is None
                else self._gives_up_on(params, seconds, give_up_on),
            ),
            at_least_for=checked_seconds("at_least_for", at_least_for) if at_least_for else 0.0,
        )

    def _gives_up_on(
        self, params: AcquireParams, wait: float, give_up_on: Callable[[LockContended], bool]
    ) -> Callable[[Attempt], bool]:
        """Let `give_up_on` judge attempts by the error that they would end with."""

        def gives_up(made: Attempt) -> bool:
            if made.phase is not Phase.CONTENDED:
                return False
            error = not_acquired_error(made, params, self.key_prefix, self.transport.names, wait)
            return isinstance(error, LockContended) and give_up_on(error)

        return gives_up

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

    def _build_params(
        self,
        keys: tuple[str, ...],
        ttl: float,
        label: str,
        *,
        reserved_keys: Sequence[str] = (),
        previous: Reservation | None = None,
    ) -> AcquireParams:
        keys = checked_node_keys(self.key_prefix, keys, reserved_keys)
        return self._params_for(keys, ttl, label, previous)
