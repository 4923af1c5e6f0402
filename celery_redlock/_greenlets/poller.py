"""
Waiting for descriptors: `poll`, or a substitute where eventlet or the system does not have it.
"""

from __future__ import annotations

import math
import select
from typing import Any

from celery_redlock._greenlets.unpatched import unpatched

READ = 1
WRITE = 4


class GreenPoller:
    """
    The methods of `select.poll` that this package uses, over eventlet's `select`.

    The hub gets a single descriptor, that of an epoll. Given several, eventlet calls back for each
    that is ready at the same time, although the first has ended the wait: the others would wake the
    greenlet from its next wait, such as a sleep in a task's body.
    """

    def __init__(self) -> None:
        self._epoll = unpatched("select", "epoll")()
        self.register = self._epoll.register
        self.modify = self._epoll.modify
        self.unregister = self._epoll.unregister

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        """Wait for any descriptor while other greenlets run."""
        ready: list[tuple[int, int]] = self._epoll.poll(0)
        if not ready and milliseconds > 0:
            select.select([self._epoll.fileno()], [], [], milliseconds / 1000)
            ready = self._epoll.poll(0)
        return ready


class SelectPoller:
    """The methods of `select.poll` that this package uses, where there is none (Windows)."""

    def __init__(self) -> None:
        self._select = unpatched("select", "select")
        self._events: dict[int, int] = {}
        self.register = self.modify = self._events.__setitem__
        self.unregister = self._events.__delitem__

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        """Wait for any descriptor."""
        writing = [fd for fd, events in self._events.items() if events & WRITE]
        readable, writable, _ = self._select(list(self._events), writing, [], milliseconds / 1000)
        ready = dict.fromkeys(readable, READ)
        for fd in writable:
            ready[fd] = ready.get(fd, 0) | WRITE
        return list(ready.items())


def system_polls() -> bool:
    """Return whether the system has `poll`. Without it, only sockets can be waited for."""
    try:
        unpatched("select", "poll")
    except AttributeError:
        return False
    return True


def new_poller(*, native: bool) -> Any:
    """Return an object with the methods of `select.poll`."""
    if not system_polls():
        return SelectPoller()
    if native:
        return unpatched("select", "poll")()
    if hasattr(select, "poll"):
        return select.poll()
    return GreenPoller()


def as_milliseconds(seconds: float) -> int:
    """Round up: the caller of a poll that returns early would call it again at once."""
    return max(0, math.ceil(seconds * 1000))
