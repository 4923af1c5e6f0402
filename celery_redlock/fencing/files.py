"""
A guard for a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from celery_redlock.fencing.records import TokenFile, sync_directory
from celery_redlock.fencing.tokens import token_or_current

__all__ = ["FileFence"]


class FileFence:
    """
    Replaces a file as a whole, and refuses a token older than the highest one it has seen.

    A reader sees the old content or the new one, never a part, also when a writer is killed. The
    token is on the disk before the content is: a writer that dies between the two has written
    nothing, but older ones are refused from then on. Limits: only writes that go through a fence
    are refused; and it needs a file system with `flock` and an atomic `rename`, so all writers on
    one host, or a network file system that says it has both.

    Beside `path` there are `path.fence` (the token) and `path.lock`; delete them only together
    with what they guard. Usable from any thread or process.

    Args:
        path: the file; its directory must exist. A symbolic link is followed.
        lock_timeout: seconds after which a writer gives up on a lock, with `TimeoutError`. It is
            held for the moment of the change, so only a process that is stopped there keeps it.
        fsync: let nothing be lost when the host loses power. Without it a write is only safe
            against the end of processes.

    Example:
        >>> fence = FileFence("/srv/report.json")
        >>> fence.write(b"{}", lease.fencing_token)
    """

    def __init__(
        self, path: str | os.PathLike[str], *, lock_timeout: float = 10.0, fsync: bool = True
    ) -> None:
        self.path = Path(path).resolve()
        self._fsync = fsync
        self._token = TokenFile(self.path, str(self.path), lock_timeout, fsync)

    def read(self) -> bytes:
        """Return the content. Not guarded; see `claim`."""
        return self.path.read_bytes()

    def seen(self) -> int | None:
        """Return the highest token that the file has seen; for people who look."""
        return self._token.seen() or None

    def claim(self, token: int | None = None) -> None:
        """
        Let the file see a token without writing: from now on older ones are refused.

        Do so before reading what a later write is based on. Otherwise an earlier holder may write
        between that read and that write, and its update is lost although no token was stale.

        Raises: as `write`.
        """
        number = token_or_current(token)
        with self._token.locked():
            self._token.claim(number)

    def write(self, data: bytes, token: int | None = None) -> None:
        """
        Replace the content, unless the file has seen a newer token.

        Args:
            data: the new content.
            token: a fencing token; the current lease's if not given.

        Raises:
            StaleFencingToken: the file has seen a newer token; it is unchanged.
            InvalidFencingToken: the token cannot be one, or none was given outside of a lease.
            FenceRecordDamaged: `path.fence` is not a number.
            TimeoutError: another process kept the lock.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(
                f"FileFence.write takes bytes, not {type(data).__name__}; encode a text first."
            )
        with self.replacing(token) as file:
            file.write(data)

    @contextlib.contextmanager
    def replacing(self, token: int | None = None) -> Iterator[BinaryIO]:
        """
        Give a new file to write to, which replaces the content when the block ends without error.

        The token is looked at before and after, so a writer that is stale already does no work,
        and one that becomes so meanwhile is refused. Nobody is kept waiting during the block.

        Raises: as `write`.
        """
        number = token_or_current(token)
        with self._token.locked():
            self._token.compare(number)
            temporary, descriptor = self._create()
        try:
            # A second descriptor: a caller may close the file, also without knowing.
            with os.fdopen(os.dup(descriptor), "wb") as file:
                yield file
            if self._fsync:
                os.fsync(descriptor)
            with self._token.locked():
                self._token.claim(number)
                temporary.replace(self.path)
        except BaseException:
            if _names(temporary, descriptor):
                temporary.unlink()
            raise
        finally:
            os.close(descriptor)
        if self._fsync:
            sync_directory(self.path.parent)

    def _create(self) -> tuple[Path, int]:
        """Return a file that nobody else writes: a new one, or what a killed writer has left."""
        for number in itertools.count():
            path = self.path.with_name(f".{self.path.name}.new-{number}")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            # Its writer keeps it locked, and may have renamed it since we opened it.
            if _lock(descriptor) and _names(path, descriptor):
                os.ftruncate(descriptor, 0)
                with contextlib.suppress(FileNotFoundError):
                    os.fchmod(descriptor, self.path.stat().st_mode & 0o7777)
                return path, descriptor
            os.close(descriptor)
        raise AssertionError("counted to the end")


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _names(path: Path, descriptor: int) -> bool:
    """Tell whether a path is that of an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
