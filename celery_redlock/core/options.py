"""
Options of clients and of their calls, with defaults, checked before anything is sent.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from celery_redlock.core.attempt import AcquireParams, Attempt
from celery_redlock.core.client_label import client_label
from celery_redlock.core.failures import not_acquired_error
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.retry import RetryBudget, RetryPolicy, checked_policy
from celery_redlock.core.validation import (
    LockKeys,
    checked_drift_factor,
    checked_keys,
    checked_node_keys,
    checked_prefix,
    checked_seconds,
    checked_ttl,
)
from celery_redlock.core.wait_limit import limited
from celery_redlock.errors import ConfigurationError, LockContended
from celery_redlock.protocol import Waiter, milliseconds
from celery_redlock.transport import Transport


class ClientOptions(TypedDict, total=False):
    """
    Settings of `Redlock` and `AsyncRedlock`.

    Attributes:
        ttl: default lease length in seconds, from 0.2 to `max_ttl`; 30 s.
        max_ttl: longest lease of the whole deployment in seconds; 60 s. Every client of the same
            nodes must use the same value, because a restarted node is quarantined for that long.
        key_prefix: prefix of every key; `redlock:`.
        drift_factor: part of a TTL by which clocks may differ while it runs; 0.01.
        node_timeout: seconds in which a node has to answer, also in each step of connecting; 0.2 s.
        guard: quarantine nodes that restarted or lost their data; None: with two nodes and more.
        retry: a tenacity wait, or a whole `tenacity.Retrying`, for calls with `wait`.
    """

    ttl: float | timedelta
    max_ttl: float | timedelta
    key_prefix: str
    drift_factor: float
    node_timeout: float | timedelta
    guard: bool | None
    retry: RetryPolicy | None


class AcquireOptions(TypedDict, total=False):
    """
    Options of `acquire` and `lock`.

    Attributes:
        ttl: lease length in seconds; the client's if not given.
        wait: how long to try, in seconds; 0: once; None or `math.inf`: until the lock is acquired,
            also while too few nodes answer.
        retry: how to wait between tries; the client's policy if not given.
        label: suffix of the owner value, for people: in errors, in lists of locks and in keys on a
            node; the host's name and the process id if not given.
        at_least_for: seconds for which the keys stay locked even if the lease is released earlier.
        limit: how many may hold the key at once, up to 128; of several, name a `Limit`.
    """

    limit: int | None
    ttl: float | timedelta | None
    wait: float | timedelta | None
    retry: RetryPolicy | None
    label: str
    at_least_for: float | timedelta


CLIENT_OPTIONS = frozenset(ClientOptions.__annotations__)
ACQUIRE_OPTIONS = frozenset(AcquireOptions.__annotations__)


def check_names(call: str, options: Mapping[str, object], known: frozenset[str]) -> None:
    """Raise `TypeError` for an option that `call` does not have, and suggest one that it has."""
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            names = ", ".join(sorted(known))
            advice = f"Did you mean {close[0]!r}?" if close else f"It has {names}."
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}. {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """
    `ClientOptions`, checked; durations in seconds.

    Attributes:
        quarantine_ms: for how long a restarted node grants nothing; 0: the guard is off.
    """

    ttl: float
    max_ttl: float
    key_prefix: str
    drift_factor: float
    node_timeout: float
    quarantine_ms: int
    retry: RetryPolicy

    def acquire_params(
        self,
        node_keys: tuple[str, ...],
        ttl: float,
        label: str,
        previous: Reservation | None = None,
        *,
        as_reservation: bool = False,
        waiter: Waiter | None = None,
    ) -> AcquireParams:
        """Return what an attempt asks of the nodes."""
        return AcquireParams(
            node_keys=node_keys,
            ttl=ttl,
            max_ttl=self.max_ttl,
            key_prefix=self.key_prefix,
            label=label,
            drift_factor=self.drift_factor,
            node_timeout=min(self.node_timeout, ttl / 3),
            quarantine_ms=self.quarantine_ms,
            previous=previous,
            as_reservation=as_reservation,
            waiter=waiter,
        )


def client_settings(
    nodes: int,
    *,
    ttl: float | timedelta = 30.0,
    max_ttl: float | timedelta = 60.0,
    key_prefix: str = "redlock:",
    drift_factor: float = 0.01,
    node_timeout: float | timedelta = 0.2,
    guard: bool | None = None,
    retry: RetryPolicy | None = None,
) -> ClientSettings:
    """
    Check `ClientOptions` for a client of so many nodes, and fill in their defaults.

    Raises:
        ConfigurationError: a value cannot work; the message names one that can.
    """
    if guard is not None and not isinstance(guard, bool):
        raise ConfigurationError(
            f"guard={guard!r:.80} is not a choice: give True or False for the restart quarantine, "
            "or None to have it with two nodes and more."
        )
    longest = checked_seconds("max_ttl", max_ttl)
    guarded = nodes > 1 if guard is None else guard
    return ClientSettings(
        ttl=checked_ttl(ttl, longest),
        max_ttl=longest,
        key_prefix=checked_prefix(key_prefix),
        drift_factor=checked_drift_factor(drift_factor),
        node_timeout=checked_seconds("node_timeout", node_timeout),
        quarantine_ms=milliseconds(longest) if guarded else 0,
        retry=checked_policy(retry),
    )


def _checked_wait(wait: float | timedelta | None) -> float:
    """Return for how many seconds to try; infinite: until the lock is acquired."""
    return limited(
        math.inf
        if wait is None or wait == math.inf
        else checked_seconds("wait", wait, may_be_zero=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireRequest:
    """
    One call to acquire a lock, checked; nothing has been sent yet.

    Attributes:
        keys: lock keys as users write them; reserved keys if there are no others.
        params: what the nodes are asked.
        budget: for how long to try.
        at_least_for: seconds for which the keys stay locked even if the lease is released earlier.
        waiter: by which name its tries wait; None: by one of its own, which waits with it only.
    """

    keys: tuple[str, ...]
    params: AcquireParams
    budget: RetryBudget
    at_least_for: float
    waiter: Waiter | None = None


def acquire_request(
    settings: ClientSettings,
    transport: Transport,
    key: LockKeys,
    reserved_keys: Sequence[str] = (),
    *,
    limit: int | None = None,
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = 0.0,
    retry: RetryPolicy | None = None,
    label: str = "",
    at_least_for: float | timedelta = 0.0,
    reservation: Reservation | None = None,
    give_up_on: Callable[[LockContended], bool] | None = None,
    waiter: Waiter | None = None,
    first_waiter: Waiter | None = None,
) -> AcquireRequest:
    """Check the arguments of a call to acquire a lock; see `Reservations.acquire_for_task`."""
    keys = checked_keys(key, limit)
    node_keys = checked_node_keys(settings.key_prefix, keys, reserved_keys)
    seconds = settings.ttl if ttl is None else checked_ttl(ttl, settings.max_ttl)
    params = settings.acquire_params(
        node_keys, seconds, label or client_label(), reservation, waiter=first_waiter
    )
    longest_wait = _checked_wait(wait)

    def gives_up(attempt: Attempt) -> bool:
        if give_up_on is None or not attempt.is_refused:
            return False
        error = not_acquired_error(attempt, params, transport.names, longest_wait)
        return isinstance(error, LockContended) and give_up_on(error)

    return AcquireRequest(
        keys=keys or tuple(reserved_keys),
        params=params,
        budget=RetryBudget(
            wait=longest_wait,
            policy=settings.retry if retry is None else checked_policy(retry),
            now=transport.now,
            give_up_on=None if give_up_on is None else gives_up,
        ),
        at_least_for=checked_seconds("at_least_for", at_least_for, may_be_zero=True),
        waiter=waiter,
    )
