"""
Settings of a client, with defaults, checked when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from tenacity import AsyncRetrying, BaseRetrying, wait_random_exponential
from tenacity.wait import wait_base

from celery_redlock.core.validation import (
    checked_drift_factor,
    checked_prefix,
    checked_seconds,
    checked_ttl,
)
from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.mastership import SHORTEST_TAKEOVER, takeover_of
from celery_redlock.protocol.timing import milliseconds

RetryPolicy = BaseRetrying | wait_base

#: Full jitter, 10 ms doubling to 250 ms: contenders that met once must not meet again.
DEFAULT_POLICY = wait_random_exponential(multiplier=0.01, max=0.25)

#: For publishers: many may try at once, and none waits for a holder. If 100 of them retried eight
#: times a second each, they would keep colliding while the nodes are busy.
PUBLISH_POLICY = wait_random_exponential(multiplier=0.01, max=1.0)


class ClientOptions(TypedDict, total=False):
    """
    Settings of `Redlock` and `AsyncRedlock`.

    Attributes:
        ttl: default length of a lease in seconds, from 0.2 to `max_ttl`. Default: 30.
        max_ttl: longest lease in the whole deployment, in seconds. A restarted node is quarantined
            for this long, so every client of the same nodes must use the same value. Default: 60.
        takeover: seconds after a failover in which a client may still ask the former master. A
            promoted server is quarantined for this long in addition, so it is one value for all
            clients, as `max_ttl` is. Default: None, which means 30 if a node can fail over, and 0
            if none can.
        key_prefix: prefix of every key on the nodes. Default: `redlock:`.
        drift_factor: the fraction of a TTL by which two clocks may drift apart while it runs.
            Default: 0.01.
        node_timeout: seconds within which a node must reply, and within which each step of
            connecting to it must end. Default: 0.2.
        guard: whether nodes that restarted or lost their data are quarantined. Default: None, which
            means yes if there are two nodes or more.
        retry: how a call with `wait` tries again: a tenacity wait, or a whole `tenacity.Retrying`.
    """

    ttl: float | timedelta
    max_ttl: float | timedelta
    takeover: float | timedelta | None
    key_prefix: str
    drift_factor: float
    node_timeout: float | timedelta
    guard: bool | None
    retry: RetryPolicy | None


CLIENT_OPTIONS = frozenset(ClientOptions.__annotations__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """
    `ClientOptions`, checked; durations in seconds.

    Attributes:
        takeover: 0 as well if the guard is off.
        quarantine_ms: for how long a restarted node grants nothing; 0: the guard is off.
    """

    ttl: float
    max_ttl: float
    takeover: float
    key_prefix: str
    drift_factor: float
    node_timeout: float
    quarantine_ms: int
    retry: RetryPolicy

    @property
    def guard(self) -> bool:
        """Whether restarted nodes are quarantined."""
        return self.quarantine_ms > 0


def checked_policy(retry: RetryPolicy | None) -> RetryPolicy:
    """Return the retry policy, or raise `ConfigurationError`."""
    if retry is None:
        return DEFAULT_POLICY
    if isinstance(retry, BaseRetrying | wait_base) and not isinstance(retry, AsyncRetrying):
        return retry
    raise ConfigurationError(
        f"retry is a tenacity wait such as wait_random_exponential(0.01, max=0.25), or a whole "
        f"tenacity.Retrying, not {type(retry).__name__}."
    )


def client_settings(
    nodes: int,
    *,
    fail_over: bool = False,
    ttl: float | timedelta = 30.0,
    max_ttl: float | timedelta = 60.0,
    takeover: float | timedelta | None = None,
    key_prefix: str = "redlock:",
    drift_factor: float = 0.01,
    node_timeout: float | timedelta = 0.2,
    guard: bool | None = None,
    retry: RetryPolicy | None = None,
) -> ClientSettings:
    """
    Check `ClientOptions` for a client of that many nodes, and fill in the defaults.

    Args:
        nodes: how many there are.
        fail_over: whether one of them can fail over.
        ttl, max_ttl, takeover, key_prefix, drift_factor, node_timeout, guard, retry: the options.

    Raises:
        ConfigurationError: a value is invalid; the message names a valid one.
    """
    if guard is not None and not isinstance(guard, bool):
        raise ConfigurationError(
            f"guard={guard!r:.80} is not a choice: give True or False for the restart quarantine, "
            "or None to have it only with two or more nodes."
        )
    longest = checked_seconds("max_ttl", max_ttl)
    guarded = nodes > 1 if guard is None else guard
    if takeover is not None:
        takeover = checked_seconds("takeover", takeover, may_be_zero=True)
    former = takeover_of(takeover, fail_over=fail_over) if guarded else 0.0
    if fail_over and guarded and former < SHORTEST_TAKEOVER:
        raise ConfigurationError(
            f"takeover={former:g} s is too short: for at least {SHORTEST_TAKEOVER:g} s after a "
            "failover, a process may still ask the former master. Give at least that, or omit "
            "takeover."
        )
    return ClientSettings(
        ttl=checked_ttl(ttl, longest),
        max_ttl=longest,
        takeover=former,
        key_prefix=checked_prefix(key_prefix),
        drift_factor=checked_drift_factor(drift_factor),
        node_timeout=checked_seconds("node_timeout", node_timeout),
        quarantine_ms=milliseconds(longest + former) if guarded else 0,
        retry=checked_policy(retry),
    )
