"""
Options of a client's calls, with defaults, checked before anything is sent.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TypedDict

from celery_redlock.core.attempt import AcquireParams
from celery_redlock.core.client_label import client_label
from celery_redlock.core.settings import ClientSettings, RetryPolicy, checked_policy
from celery_redlock.core.validation import (
    LockKeys,
    Name,
    checked_keys,
    checked_records,
    checked_seconds,
    checked_ttl,
)
from celery_redlock.core.waiting import RetryOptions, limited
from celery_redlock.errors import LockKeyError
from celery_redlock.protocol.keys import Key


class AcquireOptions(TypedDict, total=False):
    """
    Options of `acquire` and `lock`.

    Attributes:
        ttl: length of the lease in seconds. Default: the client's `ttl`.
        wait: how long to keep trying, in seconds. 0 means one attempt; None or `math.inf` means
            until the lock is acquired, even while too few nodes reply. Default: 0.
        retry: how to wait between attempts. Default: the client's `retry`.
        label: a name for the holder, which people see in errors, in lists of locks and in the
            nodes' keys. Default: the host name and the process id.
        at_least_for: seconds for which the keys stay locked, even if the lease is released earlier;
            one that expires without a release frees them.
    """

    ttl: float | timedelta | None
    wait: float | timedelta | None
    retry: RetryPolicy | None
    label: str
    at_least_for: float | timedelta


ACQUIRE_OPTIONS = frozenset(AcquireOptions.__annotations__)


def check_names(call: str, options: Mapping[str, object], known: frozenset[str]) -> None:
    """Raise `TypeError` for an option that `call` does not have, and suggest one that it has."""
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            names = ", ".join(sorted(known))
            advice = f"Did you mean {close[0]!r}?" if close else f"It has {names}."
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}. {advice}")


def _checked_wait(wait: float | timedelta | None) -> float:
    """Return for how many seconds to try; infinite: until the lock is acquired."""
    return limited(
        math.inf
        if wait is None or wait == math.inf
        else checked_seconds("wait", wait, may_be_zero=True)
    )


def checked_options(
    settings: ClientSettings,
    key: LockKeys | Sequence[Name],
    records: Sequence[str | Key] = (),
    *,
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = 0.0,
    retry: RetryPolicy | None = None,
    label: str = "",
    at_least_for: float | timedelta = 0.0,
) -> tuple[AcquireParams, RetryOptions]:
    """
    Check the arguments of a call to acquire a lock; see `AcquireOptions`.

    Returns:
        The parameters of its attempts, and how it tries again if the first one is not granted.
    """
    keys = (*checked_keys(settings.key_prefix, key), *checked_records(records))
    if not keys:
        raise LockKeyError("A lock key cannot be empty. Name one key or several.")
    length = settings.ttl if ttl is None else checked_ttl(ttl, settings.max_ttl)
    tries = RetryOptions(
        seconds=_checked_wait(wait),
        policy=settings.retry if retry is None else checked_policy(retry),
    )
    params = AcquireParams(
        settings=settings,
        keys=keys,
        ttl=length,
        label=label or client_label(),
        at_least_for=checked_seconds("at_least_for", at_least_for, may_be_zero=True),
    )
    return params, tries
