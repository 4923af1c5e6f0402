"""
A leader's connection to the broker, with time limits that fit into one pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from celery.beat import SchedulingError
from kombu.exceptions import OperationalError

from celery_redlock._log import event_logger
from celery_redlock.errors import DuplicateTask
from celery_redlock.tasks.border import AppLike

logger = event_logger(__name__)

#: Options that limit the wait for an answer, by transport; kombu has none common to all.
LIMITS = {
    "redis": ("socket_timeout", "socket_connect_timeout"),
    "py-amqp": ("read_timeout", "write_timeout"),
}
#: Options that make a publish wait for the broker's answer. Without them a message counts as sent
#: before the broker has read it, which may never happen.
CONFIRMED = {"py-amqp": {"confirm_publish": True}}


class Broker:
    """
    The leader's connection to its broker, and for how long the broker has been unreachable.

    kombu tries again and again within one call, with no time limit for an answer. A leader has to
    return from each call and check that it still leads, so it tries once, and again in later
    passes.

    Args:
        app: the app whose broker it is.
        timeout: seconds to wait for one answer.
        now: reads a monotonic clock.
    """

    def __init__(self, app: AppLike, timeout: float, now: Callable[[], float]) -> None:
        self._app = app
        self._timeout = timeout
        self._now = now
        #: The connection, once `connect` has succeeded.
        self.connection: Any = None
        self._down_since: float | None = None

    @property
    def is_connected(self) -> bool:
        """Return whether it is connected, as far as any call has noticed."""
        return self.connection is not None and bool(self.connection.connected)

    @property
    def down_for(self) -> float:
        """Seconds since the first failure to connect; 0.0 while the broker is reachable."""
        return 0.0 if self._down_since is None else self._now() - self._down_since

    def connect(self) -> bool:
        """Connect if necessary; return whether the broker is connected. Never raises."""
        try:
            if self.connection is None:
                self.connection = limited_connection(self._app, self._timeout)
            self.connection.ensure_connection(max_retries=0)
        except Exception as exc:
            self._log_down(exc)
            self._try_next_host()
            return False
        self._log_up()
        return True

    def close(self) -> None:
        """Close the connection cleanly. Idempotent, never raises."""
        connection, self.connection = self.connection, None
        if connection is not None:
            try:
                connection.release()
            except Exception as exc:
                logger.debug(
                    "beat-broker-close-failed",
                    "The broker connection was not closed cleanly: %(error)r",
                    error=exc,
                )

    def drop(self) -> None:
        """Close the connection without sending anything: the broker may not answer."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        try:
            connection.collect(socket_timeout=self._timeout)
        except Exception as exc:
            logger.debug(
                "beat-broker-drop-failed",
                "The broker connection was not closed cleanly: %(error)r",
                error=exc,
            )

    def _try_next_host(self) -> None:
        if self.connection is not None:
            # Does nothing if the broker has only one address.
            with contextlib.suppress(Exception):
                self.connection.maybe_switch_next()

    def _log_down(self, exc: Exception) -> None:
        if self._down_since is not None:
            return
        self._down_since = self._now()
        logger.error(
            "beat-broker-unreachable",
            "Beat cannot connect to the broker: %(error)s. It sends nothing until it is connected",
            error=exc,
        )

    def _log_up(self) -> None:
        if self._down_since is None:
            return
        away, self._down_since = self.down_for, None
        logger.warning(
            "beat-broker-back",
            "Beat is connected to the broker again, after %(seconds).1f s",
            seconds=away,
        )


def limited_connection(app: AppLike, timeout: float) -> Any:
    """Return an unopened connection to an app's broker that waits `timeout` for an answer."""
    connection = app.connection_for_write(connect_timeout=timeout)
    driver = connection.transport.driver_name
    given = {**CONFIRMED.get(driver, {}), **(connection.transport_options or {})}
    for option in LIMITS.get(driver, ()):
        own = given.get(option)
        given[option] = min(own, timeout) if own else timeout
    connection.transport_options = given
    return connection


def duplicate_in(error: BaseException) -> DuplicateTask | None:
    """Return the `DuplicateTask` behind a scheduler's error; None if there is none."""
    # Celery wraps whatever a publish raises in an error of its own.
    cause = error.__context__ if isinstance(error, SchedulingError) else error
    return cause if isinstance(cause, DuplicateTask) else None


def is_broker_failure(error: BaseException, connection: Any) -> bool:
    """Return whether a publish failed because of the broker, not of the message."""
    failures = (OperationalError, *connection.recoverable_connection_errors)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, failures):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
