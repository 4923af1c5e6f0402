"""
The files of a fence: the highest token of a resource, the lock for comparing it, and drafts.

A draft is written under a temporary name, and replaces another file when it is complete. Other
users may be able to write in the same directory. So the names of drafts cannot be guessed, a draft
is never a file that existed before, and nothing here follows a symbolic link or waits for a pipe. A
killed writer leaves its draft behind. The lock file lists all drafts, and the next writer removes
those that no process keeps locked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from celery_redlock.errors import FenceRecordCorrupt
from celery_redlock.fencing.arguments import stale, token_in

try:
    import fcntl
except ImportError:
    raise ImportError(
        "FileFence and FileTokenStore need the file locks of POSIX, which this system does not "
        "have. Use RedisFence, or the fence of a database."
    ) from None

#: The last suffix of every file name made here begins with this.
RESERVED = ".redlock-"

_ENTRY = re.compile(rb"[0-9a-f]{16}")

#: Opening a file with these changes nothing and never waits, whatever the file is.
_SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_IRREGULAR_ERRNOS = {errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO}

_RETRY_DELAY = (0.001, 0.02)

#: More bytes than a token has.
_MAX_BYTES = 32


class _IrregularFile(OSError):
    """The path does not lead to a regular file."""


def _lock_now(descriptor: int) -> None:
    """
    Lock an open file, until it is unlocked or its last descriptor is closed.

    Raises:
        BlockingIOError: another open file has the lock.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def _open_regular(path: Path, flags: int) -> Iterator[int]:
    """
    Open a regular file for a block.

    Raises:
        _IrregularFile: it is a symbolic link, a directory or a pipe; or it is opened for writing
            and has a second name, which may belong to another user.
    """
    try:
        descriptor = os.open(path, flags | _SAFE_FLAGS, 0o666)
    except OSError as exc:
        raise (_IrregularFile(str(path)) if exc.errno in _IRREGULAR_ERRNOS else exc) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or (flags & os.O_RDWR and found.st_nlink > 1):
            raise _IrregularFile(str(path))
        yield descriptor
    finally:
        os.close(descriptor)


class Draft:
    """
    A new file, which its writer keeps locked until `close`.

    Attributes:
        descriptor: its open descriptor.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.descriptor = descriptor
        self._path = path

    def replace(self, target: Path) -> None:
        """Replace another file with this one."""
        self._path.replace(target)

    def close(self) -> None:
        """Close the file, and remove it unless it has replaced another one."""
        try:
            # The name may belong to another file by now.
            if os.path.samestat(self._path.lstat(), os.fstat(self.descriptor)):
                self._path.unlink()
        except FileNotFoundError:
            pass
        finally:
            os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class Drafts:
    """
    The drafts beside one path, usable while the lock on their list is held.

    Attributes:
        path: the path after which drafts are named.
        entries: the descriptor of the list.
    """

    path: Path
    entries: int

    def create(self, target: Path) -> Draft:
        """Return a new, empty file to replace `target`, with the mode of `target` if it exists."""
        entries = [*self._remove_abandoned(), secrets.token_hex(8).encode()]
        # The list comes first: a writer killed in between leaves an entry without a file.
        content = b"".join(entry + b"\n" for entry in entries)
        os.ftruncate(self.entries, os.pwrite(self.entries, content, 0))
        path, mode = self._path_of(entries[-1]), _mode_of(target)
        # A user without permission to read the target must not be able to open its draft.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS
        draft = Draft(path, os.open(path, flags, 0o666 if mode is None else mode))
        try:
            _lock_now(draft.descriptor)
            if mode is not None:
                os.fchmod(draft.descriptor, mode)
        except BaseException:
            draft.close()
            raise
        return draft

    def _remove_abandoned(self) -> Iterator[bytes]:
        """Remove the drafts of writers that are gone; yield the entries of the others."""
        listed = os.pread(self.entries, os.fstat(self.entries).st_size, 0).split()
        # Without the pattern, a user who can write the list could have any file removed.
        for entry in filter(_ENTRY.fullmatch, listed):
            path = self._path_of(entry)
            try:
                with _open_regular(path, os.O_RDONLY) as descriptor:
                    _lock_now(descriptor)
                    path.unlink()
            except (BlockingIOError, PermissionError):
                # Its writer is still running, or it belongs to another user.
                yield entry
            except (FileNotFoundError, _IrregularFile):
                continue

    def _path_of(self, entry: bytes) -> Path:
        return self.path.with_name(f".{self.path.name}.{entry.decode()}{RESERVED}new")


def _mode_of(path: Path) -> int | None:
    """Return the permissions of a file, None if there is no file."""
    try:
        found = path.lstat().st_mode
    except FileNotFoundError:
        return None
    return stat.S_IMODE(found) & 0o777 if stat.S_ISREG(found) else None


class TokenFile:
    """
    The highest token that a resource has seen, in a file that a second file locks.

    The files are `<path>.redlock-token` and `<path>.redlock-lock`. The lock is the kernel's and
    ends with the process that holds it. The lock file is never removed: a process that created a
    new one would not exclude those that have the old one open. It lists the drafts in progress. A
    new record replaces the old one as a whole, so a killed writer leaves one or the other.

    Args:
        path: the path after which the two files are named.
        resource: the name of the resource in errors.
        timeout: seconds to wait for the lock of another process.
        fsync: write a record to the disk before anything that follows it.
    """

    def __init__(self, path: Path, resource: str, timeout: float, fsync: bool) -> None:
        self.resource = resource
        self.record = path.with_name(f"{path.name}{RESERVED}token")
        self._path = path
        self._lock = path.with_name(f"{path.name}{RESERVED}lock")
        self._timeout = timeout
        self._fsync = fsync

    @contextlib.contextmanager
    def locked(self) -> Iterator[Drafts]:
        """Exclude other processes and threads for a block, and yield the drafts to create in it."""
        # Opened anew each time: the kernel's lock belongs to the open file. Threads that shared one
        # would not exclude each other, and a forked child would hold its parent's lock.
        with self._open(self._lock, os.O_RDWR | os.O_CREAT) as descriptor:
            self._lock_file(descriptor)
            try:
                yield Drafts(self._path, descriptor)
            finally:
                # Closing alone would leave it locked for as long as a child forked meanwhile lives.
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def seen(self) -> int:
        """Return the token in the record, 0 if there is none."""
        try:
            with self._open(self.record, os.O_RDONLY) as descriptor:
                content = os.read(descriptor, _MAX_BYTES)
        except FileNotFoundError:
            return 0
        if token := token_in(content.decode("latin-1").removesuffix("\n")):
            return token
        raise FenceRecordCorrupt(
            f"The fence record {str(self.record)!r} does not hold a fencing token, so nothing was "
            "written. Replace its content with the highest token that has written, as one line; "
            "or delete it, once no holder of an older token can still be running.",
            self.resource,
        )

    def needs_update(self, token: int) -> bool:
        """Return whether the record is below `token`; raise if `token` is stale."""
        seen = self.seen()
        if seen > token:
            raise stale(self.resource, seen, token)
        return seen < token

    def claim(self, token: int, drafts: Drafts) -> None:
        """Set the record to `token`, or raise `StaleFencingToken`. Call this under the lock."""
        if self.needs_update(token):
            with contextlib.closing(drafts.create(self.record)) as draft:
                os.write(draft.descriptor, b"%d\n" % token)
                if self._fsync:
                    os.fsync(draft.descriptor)
                draft.replace(self.record)
            if self._fsync:
                sync_directory(self.record.parent)

    @contextlib.contextmanager
    def _open(self, path: Path, flags: int) -> Iterator[int]:
        with contextlib.ExitStack() as stack:
            try:
                descriptor = stack.enter_context(_open_regular(path, flags))
            except _IrregularFile:
                raise FenceRecordCorrupt(
                    f"{str(path)!r} is a symbolic link, a directory or something other than a file "
                    f"that belongs to the fence of {self.resource!r} alone, so nothing was "
                    "written. Remove it, once you know which program created it.",
                    self.resource,
                ) from None
            yield descriptor

    def _lock_file(self, descriptor: int) -> None:
        give_up_at = time.monotonic() + self._timeout
        while True:
            try:
                _lock_now(descriptor)
            except BlockingIOError:
                if time.monotonic() >= give_up_at:
                    raise TimeoutError(
                        f"Another process has held the lock on {str(self._lock)!r} for "
                        f"{self._timeout:g} s. A write holds it only for a moment: check whether "
                        "that process is suspended."
                    ) from None
                time.sleep(random.uniform(*_RETRY_DELAY))  # noqa: S311  # no secret
            else:
                return


def sync_directory(path: Path) -> None:
    """Write the names in a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
