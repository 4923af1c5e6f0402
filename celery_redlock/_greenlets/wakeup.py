"""
Waking a poll from another thread.
"""

from __future__ import annotations

import contextlib
import os

from celery_redlock._greenlets.unpatched import native_lock, unpatched


class WakeupPipe:
    """
    A pipe whose reading end is polled; any thread may ring, also when the bell is closed.

    Neither end ever blocks, so the system calls are the original ones: eventlet's would switch
    greenlets inside the lock.

    Attributes:
        fd: the descriptor to poll for reading.
    """

    def __init__(self) -> None:
        self._ends: list[int] = []
        # A closed descriptor's number may be another file's at once, hence the lock.
        self._lock = native_lock()
        self._read = unpatched("os", "read")
        self._write = unpatched("os", "write")
        self._ends.extend(os.pipe())
        for end in self._ends:
            os.set_blocking(end, False)
        self.fd = self._ends[0]

    def wake(self) -> None:
        """Make the reading end readable."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._ends:
                self._write(self._ends[1], b"!")

    def drain(self) -> None:
        """Take back whatever was rung."""
        with contextlib.suppress(BlockingIOError):
            self._read(self.fd, 4096)

    def close(self) -> None:
        """Close both ends. Idempotent."""
        with self._lock:
            self._close()

    def close_in_child(self) -> None:
        """Close a forked child's copies; another thread of the parent may have had the lock."""
        self._close()

    def __del__(self) -> None:
        # Nobody closes what belonged to an interrupted caller.
        self._close()

    def _close(self) -> None:
        while self._ends:
            os.close(self._ends.pop())
