"""
How a node has behaved lately: who is left out, for how long, and what is owed to it.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque

from celery_redlock.protocol import Command

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
    """

    __slots__ = ("_failures", "_owed", "_until", "ever", "name", "reason")

    def __init__(self, name: str) -> None:
        self.name = name
        self.reason: str | None = None
        self.ever = False
        self._failures = 0
        self._until = 0.0
        self._owed: deque[tuple[float, Command]] = deque(maxlen=_MOST_OWED)

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

    def paused(self, now: float) -> bool:
        """Tell whether the node is left out unless a quorum needs it."""
        return now < self._until

    def owe(self, until: float, command: Command) -> None:
        """Remember a command for when there is a connection; pointless after `until`."""
        self._owed.append((until, command))

    def collect(self, now: float) -> list[Command]:
        """Take what is still worth saying."""
        owed = []
        # Several channels may collect at once, so looking first would prove nothing.
        with contextlib.suppress(IndexError):
            while True:
                until, command = self._owed.popleft()
                if until > now:
                    owed.append(command)
        return owed
