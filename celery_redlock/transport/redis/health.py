"""
How a node has behaved lately: who is left out, for how long, what is owed to it, what it refuses.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections import deque

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock.protocol import Command, Script
from celery_redlock.protocol.refusals import CONSEQUENCES, explain_refusal

_logger = logging.getLogger(__name__)

_MIN_BACKOFF = 0.05
_MAX_BACKOFF = 2.0
_MAX_DEFERRED = 1000


class NodeHealth:
    """
    One node, as all channels of a client see it.

    Attributes:
        name: display name.
        reason: why it failed last, None while it works.
        was_connected: whether a connection to it has ever been made.
        refusals: the scripts that it refused when it was last asked for them, and why.
    """

    __slots__ = (
        "_backoff_until",
        "_deferred",
        "_failures",
        "name",
        "reason",
        "refusals",
        "was_connected",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.reason: str | None = None
        self.was_connected = False
        self.refusals: dict[Script, str] = {}
        self._failures = 0
        self._backoff_until = 0.0
        self._deferred: deque[Command] = deque(maxlen=_MAX_DEFERRED)

    def record_failure(self, reason: str, now: float) -> None:
        """Leave the node out for a jittered pause that doubles with each failure in a row."""
        self.reason = reason
        if now < self._backoff_until:
            return
        backoff = min(_MIN_BACKOFF * 2.0**self._failures, _MAX_BACKOFF)
        self._backoff_until = now + backoff * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        self._failures = min(self._failures + 1, 16)

    def record_success(self) -> None:
        """Take the node in again."""
        self.reason = None
        self._failures = 0
        self._backoff_until = 0.0

    def record_refusal(self, script: Script, error: str) -> str:
        """
        Take note of a script that the node has answered with an error, and return why, in words.

        Where nobody else would learn of it, it is logged; again when it has worked in between.
        """
        why = explain_refusal(script, error)
        if script in CONSEQUENCES and script not in self.refusals:
            self.refusals[script] = why
            call_in_app(
                _logger.warning,
                "Lock node %s refuses the script %s: %s. %s.",
                self.name,
                script,
                why,
                CONSEQUENCES[script],
            )
        return why

    def is_backing_off(self, now: float) -> bool:
        """Tell whether the node is left out unless a quorum needs it."""
        return now < self._backoff_until

    def defer(self, command: Command) -> None:
        """Keep a release for when there is a connection, of a thousand at most the newest."""
        self._deferred.append(command)

    def take_deferred(self) -> list[Command]:
        """Take the releases that the node has not got yet."""
        deferred = []
        # Several channels may collect at once, so looking first would prove nothing.
        with contextlib.suppress(IndexError):
            while True:
                deferred.append(self._deferred.popleft())
        return deferred
