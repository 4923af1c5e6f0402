"""
A leader's connection to the broker, on which nothing is waited for longer than a pass may take.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from celery.beat import SchedulingError
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from celery_redlock.errors import DuplicateTask

__all__ = ["Broker", "duplicate_in", "is_broker_failure", "limited_connection"]

logger = get_logger(__name__)

#: The options that bound an answer's time, by the transport's name; kombu has none for all.
LIMITS = {
    "redis": ("socket_timeout", "socket_connect_timeout"),
    "py-amqp": ("read_timeout", "write_timeout"),
}
#: What makes a publish wait for the broker's answer. Without it a message counts as sent that the
#: broker has not read, and may never read.
CONFIRMED = {"py-amqp": {"confirm_publish": True}}


class Broker:
    """
    The broker as the leader sees it: within reach, or not and since when.

    kombu's own way is to try again and again within one call, and without a time limit for an
    answer. A leader has to come back from each call, to see that it still leads. So each call is
    tried once here, and again in a later pass.

    Args:
        app: the app whose broker it is.
        timeout: seconds for one answer.
        now: reads a clock that does not step.
    """

    def __init__(self, app: Any, timeout: float, now: Callable[[], float]) -> None:
        self._app = app
        self._timeout = timeout
        self._now = now
        self._connection: Any = None
        self._down_since: float | None = None

    @property
    def connection(self) -> Any:
        """The connection, once `connect` has succeeded."""
        return self._connection

    @property
    def is_connected(self) -> bool:
        """Tell whether it is connected, as far as anybody has noticed."""
        return self._connection is not None and bool(self._connection.connected)

    @property
    def down_for(self) -> float:
        """Seconds since the broker was first found out of reach; 0.0 while it is within reach."""
        return 0.0 if self._down_since is None else self._now() - self._down_since

    def connect(self) -> bool:
        """Connect, unless it is connected; tell whether it is. Never raises."""
        try:
            if self._connection is None:
                self._connection = limited_connection(self._app, self._timeout)
            self._connection.ensure_connection(max_retries=0)
        except Exception as exc:
            self._log_down(exc)
            self._try_next_host()
            return False
        self._log_up()
        return True

    def close(self) -> None:
        """Close the connection in order. Idempotent, never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.release()
            except Exception as exc:
                logger.debug("The broker connection was not closed in order: %r", exc)

    def drop(self) -> None:
        """Give the connection up without a word to the broker, which may not answer."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.collect(socket_timeout=self._timeout)
        except Exception as exc:
            logger.debug("The broker connection was not closed in order: %r", exc)

    def _try_next_host(self) -> None:
        if self._connection is not None:
            # Does nothing where the broker has one address only.
            with contextlib.suppress(Exception):
                self._connection.maybe_switch_next()

    def _log_down(self, exc: Exception) -> None:
        if self._down_since is not None:
            return
        self._down_since = self._now()
        logger.error(
            "Beat cannot reach the broker: %s. Nothing is sent until it can",
            exc,
        )

    def _log_up(self) -> None:
        if self._down_since is None:
            return
        away, self._down_since = self.down_for, None
        logger.warning("Beat has reached the broker again, after %.1f s", away)


def limited_connection(app: Any, timeout: float) -> Any:
    """Return an unopened connection to an app's broker that waits for no answer any longer."""
    connection = app.connection_for_write(connect_timeout=timeout)
    driver = connection.transport.driver_name
    given = {**CONFIRMED.get(driver, {}), **(connection.transport_options or {})}
    for option in LIMITS.get(driver, ()):
        own = given.get(option)
        given[option] = min(own, timeout) if own else timeout
    connection.transport_options = given
    return connection


def duplicate_in(error: BaseException) -> DuplicateTask | None:
    """Return what a scheduler's error says where a task was not sent for being a duplicate."""
    # Celery makes one error of its own of all that a publish raises.
    cause = error.__context__ if isinstance(error, SchedulingError) else error
    return cause if isinstance(cause, DuplicateTask) else None


def is_broker_failure(error: BaseException, connection: Any) -> bool:
    """Tell whether it was the broker, and not the message, that failed a publish."""
    failures = (OperationalError, *connection.recoverable_connection_errors)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, failures):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
