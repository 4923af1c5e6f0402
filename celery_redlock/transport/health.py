"""
How a node has behaved lately: who is left out, for how long, what is owed to it, what it refuses.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections import deque

from celery_redlock.protocol import Command, Kind
from celery_redlock.protocol.refusals import CONSEQUENCES, explained
from celery_redlock.transport.native import in_foreground

_logger = logging.getLogger(__name__)

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_MOST_OWED = 1000


class NodeHealth:
    """
    One node, as all channels of a client see it.

    Attributes:
        name: display name.
        reason: why it failed last, None while it works.
        ever: whether a connection to it has ever been made.
        refusals: the scripts that it refused when it was last asked for them, and why.
    """

    __slots__ = ("_failures", "_owed", "_until", "ever", "name", "reason", "refusals")

    def __init__(self, name: str) -> None:
        self.name = name
        self.reason: str | None = None
        self.ever = False
        self.refusals: dict[Kind, str] = {}
        self._failures = 0
        self._until = 0.0
        self._owed: deque[Command] = deque(maxlen=_MOST_OWED)

    def failed(self, reason: str, now: float) -> None:
        """Leave the node out for a jittered pause that doubles with each failure in a row."""
        self.reason = reason
        if now < self._until:
            return
        pause = min(_FIRST_PAUSE * 2.0**self._failures, _LONGEST_PAUSE)
        self._until = now + pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        self._failures = min(self._failures + 1, 16)

    def works(self) -> None:
        """Take the node in again."""
        self.reason = None
        self._failures = 0
        self._until = 0.0

    def refused(self, kind: Kind, error: str) -> str:
        """
        Take note of a script that the node has answered with an error, and return why, in words.

        Where nobody else would learn of it, it is logged; again when it has worked in between.
        """
        why = explained(kind, error)
        if kind in CONSEQUENCES and kind not in self.refusals:
            self.refusals[kind] = why
            in_foreground(
                _logger.warning,
                "Lock node %s refuses the script %s: %s. %s.",
                self.name,
                kind,
                why,
                CONSEQUENCES[kind],
            )
        return why

    def paused(self, now: float) -> bool:
        """Tell whether the node is left out unless a quorum needs it."""
        return now < self._until

    def owe(self, command: Command) -> None:
        """Keep a release for when there is a connection, of a thousand at most the newest."""
        self._owed.append(command)

    def collect(self) -> list[Command]:
        """Take the releases that the node has not got yet."""
        owed = []
        # Several channels may collect at once, so looking first would prove nothing.
        with contextlib.suppress(IndexError):
            while True:
                owed.append(self._owed.popleft())
        return owed
