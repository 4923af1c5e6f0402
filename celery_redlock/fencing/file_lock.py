"""
The kernel's lock on an open file.
"""

from __future__ import annotations

try:
    import fcntl
except ImportError:
    raise ImportError(
        "FileFence and FileTokenStore need the file locks of POSIX, which this system does not "
        "have. Use RedisFence, or the fence of a database."
    ) from None


def lock_now(descriptor: int) -> None:
    """
    Lock an open file, until `unlock` or until its last descriptor is closed.

    Raises:
        BlockingIOError: another open file has the lock.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(descriptor: int) -> None:
    """Unlock an open file, also for the children that have inherited its descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
