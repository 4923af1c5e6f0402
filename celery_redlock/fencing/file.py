"""
A guard for a file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from celery_redlock.errors import ConfigurationError
from celery_redlock.fencing.drafts import RESERVED
from celery_redlock.fencing.token_file import TokenFile, sync_directory
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

    Beside `path` there are `path.redlock-token` and `path.redlock-lock`; delete them only together
    with what they guard. New content is written to a file of its own, whose name nobody can guess
    and which only the writer can have made; what killed writers leave of that kind the next one
    removes. No symbolic link is followed in any of these places. Who can write in the directory
    can still remove or replace its files. Usable from any thread or process.

    Args:
        path: the file; its directory must exist. A symbolic link is followed. Names whose last
            part begins with `.redlock-` are refused, since such files belong to guards.
        lock_timeout: seconds after which a writer gives up on a lock, with `TimeoutError`. It is
            held for the moment of the change, so only a process that is stopped there keeps it.
        fsync: let nothing be lost when the host loses power. Without it a write is only safe
            against the end of processes.

    Raises:
        ConfigurationError: the name is one that guards use for themselves.

    Example:
        >>> fence = FileFence("/srv/report.json")
        >>> fence.write(b"{}", lease.fencing_token)
    """

    def __init__(
        self, path: str | os.PathLike[str], *, lock_timeout: float = 10.0, fsync: bool = True
    ) -> None:
        self.path = Path(path).resolve()
        if self.path.suffix.startswith(RESERVED):
            raise ConfigurationError(
                f"{str(self.path)!r} is named as files are in which guards keep their memory "
                f"(*{RESERVED}token, *{RESERVED}lock). Give the file another name."
            )
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
        with self._token.locked() as drafts:
            self._token.claim(number, drafts)

    def write(self, data: bytes, token: int | None = None) -> None:
        """
        Replace the content, unless the file has seen a newer token.

        Args:
            data: the new content.
            token: a fencing token; the current lease's if not given.

        Raises:
            StaleFencingToken: the file has seen a newer token; it is unchanged.
            InvalidFencingToken: the token cannot be one, or none was given outside of a lease.
            FenceRecordCorrupt: `path.redlock-token` holds no number, or one of the guard's files
                is not a file of its own.
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
        with self._token.locked() as drafts:
            self._token.needs_update(number)
            draft = drafts.create(self.path)
        with contextlib.closing(draft):
            # A second descriptor: a caller may close the file, also without knowing.
            with os.fdopen(os.dup(draft.descriptor), "wb") as file:
                yield file
            if self._fsync:
                os.fsync(draft.descriptor)
            with self._token.locked() as drafts:
                self._token.claim(number, drafts)
                draft.replace(self.path)
        if self._fsync:
            sync_directory(self.path.parent)
