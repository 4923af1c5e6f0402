"""
Waking a poll from another thread.
"""

from __future__ import annotations

import contextlib
import os

from celery_redlock._greenlets.unpatched import native_lock, unpatched


class WakeupPipe:
    """
    A pipe whose reading end is polled. Any thread may call `wake`, also after `close`.

    Neither end blocks. The system calls are unpatched: eventlet's would switch greenlets inside the
    lock.

    Attributes:
        fd: the descriptor to poll for reading.
    """

    def __init__(self) -> None:
        self._ends: list[int] = []
        # The lock, because another file may reuse a closed descriptor's number at once.
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
        """Make the reading end unreadable until the next `wake`."""
        with contextlib.suppress(BlockingIOError):
            self._read(self.fd, 4096)

    def close(self) -> None:
        """Close both ends. Idempotent."""
        with self._lock:
            self._close()

    def close_in_child(self) -> None:
        """Close a forked child's copies without the lock, which a thread of the parent may hold."""
        self._close()

    def __del__(self) -> None:
        # An interrupted caller may not have closed it.
        self._close()

    def _close(self) -> None:
        while self._ends:
            os.close(self._ends.pop())
