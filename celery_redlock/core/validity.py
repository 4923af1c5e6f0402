"""
How long a lease can be trusted, and how its loss is told.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Self

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock.errors import LeaseLost
from celery_redlock.protocol.texts import shortened
from celery_redlock.transport import Transport

_logger = logging.getLogger(__name__)


class LeaseState(Enum):
    """What has become of a lease."""

    HELD = auto()
    LOST = auto()
    RELEASED = auto()


class LeaseValidity:
    """
    The part of a lease that needs no node: until when it can be trusted, and its loss.

    Attributes:
        key: the lock key as it was asked for (the first, if there are several).
        fencing_token: larger than the token of every earlier holder; fixed for the lease's life.
    """

    def __init__(
        self, transport: Transport, key: str, fencing_token: int, valid_until: float
    ) -> None:
        self.key = key
        self.fencing_token = fencing_token
        self._transport = transport
        self._valid_until = valid_until
        self._pid = os.getpid()
        self._lock = native_lock()
        self._state = LeaseState.HELD
        self._reason: str | None = None
        self._on_lost: Callable[[Any], None] | None = None

    @property
    def expires_in(self) -> float:
        """Seconds of trust left; 0.0 when it is lost, released or another process's."""
        if self._state is not LeaseState.HELD or self._pid != os.getpid():
            return 0.0
        return max(0.0, self._valid_until - self._transport.now())

    @property
    def is_valid(self) -> bool:
        """Tell whether the lease can be trusted at this instant."""
        return self.expires_in > 0.0

    @property
    def lost(self) -> str | None:
        """Why the lease was lost; None while it is held and after it was released in time."""
        if self._state is LeaseState.HELD and not self.is_valid:
            if self._pid != os.getpid():
                return "it is held by the parent of this forked process"
            self.mark_lost("it was not extended in time")
        return self._reason

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease can be trusted at this instant."""
        if not self.is_valid:
            raise self.lost_error()

    def lost_error(self) -> LeaseLost:
        """Return the error that says why the lease is not valid."""
        reason = self.lost or "it was released"
        return LeaseLost(
            f"The lease on {shortened(self.key)!r} (token {self.fencing_token}) is not valid: "
            f"{reason}. Stop writing; somebody else may hold the lock.",
            self.key,
            reason,
        )

    @property
    def transport(self) -> Transport:
        """Through which its nodes are spoken to."""
        return self._transport

    @property
    def valid_until(self) -> float:
        """End of trust on the transport's clock."""
        return self._valid_until

    def now(self) -> float:
        """Read the clock that `valid_until` is on."""
        return self._transport.now()

    def set_on_lost(self, on_lost: Callable[[Self], None] | None) -> None:
        """Set what is called once when the lease is lost, see `mark_lost`."""
        self._on_lost = on_lost

    def mark_lost(self, reason: str) -> None:
        """
        Report the lease as lost, once.

        Whoever finds out logs it and calls what `set_on_lost` set. The watchdog does so from its
        own thread, but under gevent and eventlet in a greenlet, which does not begin before the one
        that runs lets others run; the lease is not valid meanwhile all the same.
        """
        with self._lock:
            if self._state is not LeaseState.HELD:
                return
            self._state = LeaseState.LOST
            self._reason = reason
            on_lost = self._on_lost
        call_in_app(
            _logger.warning,
            "Lease on %r (token %d) lost: %s",
            shortened(self.key),
            self.fencing_token,
            reason,
        )
        if on_lost is not None:
            call_in_app(self._notify, on_lost)

    def _notify(self, on_lost: Callable[[Self], None]) -> None:
        try:
            on_lost(self)
        except Exception:
            _logger.exception("on_lost callback of the lease on %r failed", shortened(self.key))
