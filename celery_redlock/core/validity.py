"""
How long a lease is valid, and how its loss is reported.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Self

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock._log import event_logger
from celery_redlock.core import instrumentation
from celery_redlock.core.instrumentation import LossDetails
from celery_redlock.errors import LeaseLost, LossReason
from celery_redlock.protocol.texts import shortened
from celery_redlock.transport import Transport

_logger = event_logger(__name__)


class LeaseState(Enum):
    """Where a lease is in its life."""

    HELD = auto()
    LOST = auto()
    RELEASED = auto()


class LeaseValidity:
    """
    The part of a lease that needs no node: its validity, and its loss.

    Attributes:
        key: the lock key as it was asked for (the first, if there are several).
        owner: the value that marks the lease on the nodes.
        fencing_token: larger than the token of every earlier holder; fixed for the lease's life.
    """

    def __init__(
        self,
        transport: Transport,
        keys: tuple[str, ...],
        owner: str,
        fencing_token: int,
        valid_until: float,
    ) -> None:
        self.key = keys[0]
        self.keys = keys
        self.owner = owner
        self.fencing_token = fencing_token
        self._transport = transport
        self._valid_until = valid_until
        self._acquired_at = transport.now()
        self._ended_at: float | None = None
        self._pid = os.getpid()
        self._lock = native_lock()
        self._state = LeaseState.HELD
        self._reason: LossReason | None = None
        self._on_lost: Callable[[Any], None] | None = None

    @property
    def expires_in(self) -> float:
        """Seconds until the lease expires; 0.0 if it is lost, released or another process's."""
        if self._state is not LeaseState.HELD or self._pid != os.getpid():
            return 0.0
        return max(0.0, self._valid_until - self._transport.now())

    @property
    def is_valid(self) -> bool:
        """Whether the lease is valid at this instant."""
        return self.expires_in > 0.0

    @property
    def lost(self) -> LossReason | None:
        """Why the lease was lost; None while it is held and after it was released in time."""
        if self._state is LeaseState.HELD and not self.is_valid:
            if self._pid != os.getpid():
                return LossReason.FORKED
            self.mark_lost(LossReason.EXPIRED)
        return self._reason

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is valid at this instant."""
        if not self.is_valid:
            raise self.lost_error()

    def lost_error(self) -> LeaseLost:
        """Return the error that names why the lease is not valid."""
        reason = self.lost or LossReason.RELEASED
        return LeaseLost(
            f"The lease on {shortened(self.key)!r} (token {self.fencing_token}) is not valid: "
            f"{reason}. Stop writing; another process may hold the lock.",
            self.key,
            reason,
        )

    @property
    def held_for(self) -> float:
        """Seconds since the lock was acquired, until its release."""
        return (self._ended_at or self._transport.now()) - self._acquired_at

    @property
    def transport(self) -> Transport:
        """The nodes that have the lease's keys."""
        return self._transport

    @property
    def valid_until(self) -> float:
        """End of the lease's validity, on the transport's clock; infinite if it never expires."""
        return self._valid_until

    def now(self) -> float:
        """Read the clock that `valid_until` is on."""
        return self._transport.now()

    def never_expire(self) -> None:
        """From now on be valid until the release or a loss that is reported."""
        with self._lock:
            if self.is_valid:
                self._valid_until = math.inf

    def set_on_lost(self, on_lost: Callable[[Self], None] | None) -> None:
        """Set the callback for the loss of the lease, see `mark_lost`."""
        self._on_lost = on_lost

    def mark_lost(self, reason: LossReason = LossReason.REPORTED) -> None:
        """
        Report the lease as lost, once: to the log, to the callback of `set_on_lost`, to receivers.

        All this happens in the caller's thread, but the watchdog under gevent and eventlet uses a
        greenlet, which starts when the running one yields. The lease is invalid from now on.
        """
        with self._lock:
            if self._state is not LeaseState.HELD:
                return
            self._state = LeaseState.LOST
            self._reason = reason
            on_lost = self._on_lost
        call_in_app(
            _logger.warning,
            "lease-lost",
            "Lease on %(key)r (token %(token)d) lost: %(reason)s",
            key=shortened(self.key),
            token=self.fencing_token,
            reason=reason,
        )
        if on_lost is not None:
            call_in_app(self._notify, on_lost)
        if instrumentation.receivers:
            instrumentation.report(
                LossDetails(
                    keys=self.keys,
                    fencing_token=self.fencing_token,
                    reason=reason,
                    held_for=self.held_for,
                    owner=self.owner,
                )
            )

    def _notify(self, on_lost: Callable[[Self], None]) -> None:
        try:
            on_lost(self)
        except Exception:
            _logger.exception(
                "on-lost-failed",
                "on_lost callback of the lease on %(key)r failed",
                key=shortened(self.key),
            )
