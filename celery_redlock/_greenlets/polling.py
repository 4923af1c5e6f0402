"""
Waiting for descriptors, and pipes that end the wait from another thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
from typing import Any

from celery_redlock._greenlets.unpatched import native_lock, on_native_thread, unpatched

READ = 1
WRITE = 4

#: A write of at most this size is not mixed with another's; a Windows worker is a single process.
PIPE_BUF = getattr(select, "PIPE_BUF", 512)


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


def new_poller() -> Any:
    """Return an object with the methods of `select.poll`, for this thread."""
    if not system_polls():
        return SelectPoller()
    if on_native_thread():
        return unpatched("select", "poll")()
    if hasattr(select, "poll"):
        return select.poll()
    return GreenPoller()


def as_milliseconds(seconds: float) -> int:
    """Round up: the caller of a poll that returns early would call it again at once."""
    return max(0, math.ceil(seconds * 1000))


class Pipe:
    """
    A pipe whose reading end can be polled; two sockets where only sockets can be.

    Neither end blocks. The system calls are unpatched: eventlet's would switch greenlets.

    Attributes:
        fd: the descriptor to poll for reading.
    """

    def __init__(self) -> None:
        self._ends: list[Any] = []
        self._close_end: Any = os.close
        if system_polls():
            self._read = unpatched("os", "read")
            self._write = unpatched("os", "write")
            self._ends.extend(os.pipe())
            for end in self._ends:
                os.set_blocking(end, False)
            self.fd = self._ends[0]
        else:
            self._close_end = socket.socket.close
            self._read = socket.socket.recv
            self._write = socket.socket.send
            self._ends.extend(socket.socketpair())
            for end in self._ends:
                end.setblocking(False)
            self.fd = self._ends[0].fileno()
        self._reader, self._writer = self._ends

    def read(self, size: int) -> bytes:
        """
        Read what is there.

        Raises:
            BlockingIOError: nothing is there.
        """
        found: bytes = self._read(self._reader, size)
        return found

    def write(self, data: bytes) -> None:
        """
        Write bytes; up to `PIPE_BUF` of them are written whole or not at all.

        Raises:
            BlockingIOError: the pipe is full.
        """
        self._write(self._writer, data)

    def close(self) -> None:
        """Close both ends. Idempotent; the descriptors' numbers may be used again at once."""
        while self._ends:
            self._close_end(self._ends.pop())

    def __del__(self) -> None:
        # An interrupted caller may not have closed it.
        self.close()


class WakeupPipe(Pipe):
    """A pipe that ends a poll. Any thread may call `wake`, also after `close`."""

    def __init__(self) -> None:
        super().__init__()
        # `wake` must not use a closed descriptor, whose number another file may have at once.
        self._lock = native_lock()

    def wake(self) -> None:
        """Make the reading end readable."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._ends:
                self.write(b"!")

    def drain(self) -> None:
        """Make the reading end unreadable until the next `wake`."""
        with contextlib.suppress(BlockingIOError):
            self.read(4096)

    def wait(self, seconds: float) -> bool:
        """Wait for this time, or until `wake`; return whether that was called."""
        poller = new_poller()
        poller.register(self.fd, READ)
        is_woken = bool(poller.poll(as_milliseconds(seconds)))
        self.drain()
        return is_woken

    def close(self) -> None:
        """Close both ends. Idempotent."""
        with self._lock:
            super().close()

    def close_in_child(self) -> None:
        """Close a forked child's copies without the lock, which a thread of the parent may hold."""
        super().close()

    def __del__(self) -> None:
        super().close()
