"""
A fence around a file, and a store of tokens in a directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from typing import BinaryIO

from celery_redlock.errors import ConfigurationError
from celery_redlock.fencing.arguments import checked_path, token_or_current
from celery_redlock.fencing.token_file import RESERVED, TokenFile, sync_directory


class FileFence:
    """
    Replaces a file as a whole, and refuses a token older than the highest one it has seen.

    A reader sees the old content or the new content, never a part, even if a writer is killed. The
    token reaches the disk before the content: a writer that dies in between has written nothing,
    and the fence refuses older tokens from then on. Limits: it refuses only writes that go through
    a fence, and it needs a file system with `flock` and an atomic `rename`: all writers on one
    host, or a network file system that promises both.

    Beside `path` there are `path.redlock-token` and `path.redlock-lock`; delete them only together
    with `path`. A writer puts new content into a file that it creates under a name that cannot be
    guessed; the next writer removes what a killed writer has left. The fence opens none of these
    files through a symbolic link. A user with write permission for the directory can still remove
    or replace its files. Safe to use from any thread or process.

    Args:
        path: the file; its directory must exist. A symbolic link is followed. A name whose last
            suffix begins with `.redlock-` is refused, since such files belong to fences.
        lock_timeout: seconds to wait for the lock on the file before `TimeoutError`. A writer holds
            the lock only for the moment of the change, unless its process is stopped at that point.
        fsync: whether writes survive a power failure of the host. Without it, they survive only the
            death of processes.

    Raises:
        ConfigurationError: fences reserve the name, or it is not a file in an existing directory.

    Example:
        >>> fence = FileFence("/srv/report.json")
        >>> fence.write(b"{}", lease.fencing_token)
    """

    def __init__(
        self, path: str | os.PathLike[str], *, lock_timeout: float = 10.0, fsync: bool = True
    ) -> None:
        self.path = checked_path("FileFence", path)
        if self.path.is_dir() or not self.path.parent.is_dir():
            what = "is" if self.path.is_dir() else "is not in"
            raise ConfigurationError(
                f"FileFence replaces a file, but {str(self.path)!r} {what} a directory. Name a "
                "file in a directory that exists."
            )
        if self.path.suffix.startswith(RESERVED):
            raise ConfigurationError(
                f"{str(self.path)!r} has the name of a file in which a fence keeps its token "
                f"(*{RESERVED}token, *{RESERVED}lock). Give the file another name."
            )
        self._fsync = fsync
        self._token = TokenFile(self.path, str(self.path), lock_timeout, fsync)

    def read(self) -> bytes:
        """Return the content. Not fenced; see `claim`."""
        return self.path.read_bytes()

    def seen(self) -> int | None:
        """Return the highest token that the file has seen, for monitoring."""
        return self._token.seen() or None

    def claim(self, token: int | None = None) -> None:
        """
        Let the file see a token without writing: from now on the fence refuses older ones.

        Claim before you read data on which a later write depends. Otherwise an earlier holder may
        write between your read and your write, and its update is lost although no token was stale.

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
            InvalidFencingToken: the token is invalid, or none was given outside of a lease.
            FenceRecordCorrupt: `path.redlock-token` holds no number, or one of the fence's files is
                not a regular file that belongs to it alone.
            TimeoutError: another process held the lock for too long.
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
        Yield a new file, which replaces the content when the block ends without an error.

        The fence compares the token before and after the block: a stale writer does no work, and
        one that becomes stale meanwhile is refused. No other writer waits during the block.

        Raises: as `write`.
        """
        number = token_or_current(token)
        with self._token.locked() as drafts:
            self._token.needs_update(number)
            draft = drafts.create(self.path)
        with contextlib.closing(draft):
            # A second descriptor, because the caller may close the file.
            with os.fdopen(os.dup(draft.descriptor), "wb") as file:
                yield file
            if self._fsync:
                os.fsync(draft.descriptor)
            with self._token.locked() as drafts:
                self._token.claim(number, drafts)
                draft.replace(self.path)
        if self._fsync:
            sync_directory(self.path.parent)


class FileTokenStore:
    """
    A store in a directory, for the processes of one host; it survives restarts.

    Each resource has two small files there, named after a digest of its name.

    Args:
        directory: an existing directory.
        lock_timeout: as `FileFence`.
        fsync: as `FileFence`.

    Raises:
        ConfigurationError: there is no such directory.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, lock_timeout: float = 10.0, fsync: bool = True
    ) -> None:
        self._directory = checked_path("FileTokenStore", directory)
        if not self._directory.is_dir():
            raise ConfigurationError(
                f"FileTokenStore keeps its files in a directory, but {str(self._directory)!r} is "
                "not one. Create it first."
            )
        self._timeout = lock_timeout
        self._fsync = fsync

    def claim(self, resource: str, token: int | None = None) -> None:
        """Let a resource see a token; raise `StaleFencingToken` if it has seen a newer one."""
        number = token_or_current(token)
        digest = hashlib.sha256(resource.encode(errors="surrogatepass")).hexdigest()
        path = self._directory / f"{digest}{RESERVED}store"
        record = TokenFile(path, resource, self._timeout, self._fsync)
        with record.locked() as drafts:
            record.claim(number, drafts)
