"""
Waiting for descriptors: poll where there is one, select where eventlet has taken it away.
"""

from __future__ import annotations

import math
import select
from typing import Any

from celery_redlock.transport.primitives import original

READ = 1
WRITE = 4


class SelectPoller:
    """The few methods of `select.poll` that are used, over `select.select`."""

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, fd: int, events: int) -> None:
        """Watch a descriptor."""
        self._events[fd] = events

    modify = register

    def unregister(self, fd: int) -> None:
        """Stop watching a descriptor."""
        del self._events[fd]

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        """Wait for any descriptor."""
        writing = [fd for fd, events in self._events.items() if events & WRITE]
        readable, writable, _ = select.select(list(self._events), writing, [], milliseconds / 1000)
        ready = dict.fromkeys(readable, READ)
        for fd in writable:
            ready[fd] = ready.get(fd, 0) | WRITE
        return list(ready.items())


def new_poller(*, native: bool) -> Any:
    """Return an object with the methods of `select.poll`."""
    if native:
        return original("select", "poll")()
    if hasattr(select, "poll"):
        return select.poll()
    return SelectPoller()


def as_milliseconds(seconds: float) -> int:
    """Round up: a poll that returns early would be called again at once."""
    return max(0, math.ceil(seconds * 1000))
