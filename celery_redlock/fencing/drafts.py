"""
Drafts: files written under a temporary name that replace another file when they are complete.

Other users may be able to write in the same directory. So the names of drafts cannot be guessed, a
draft is never a file that existed before, and nothing here follows a symbolic link or waits for a
pipe. A killed writer leaves its draft behind. The lock file lists all drafts, and the next writer
removes those that no process keeps locked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


class IrregularFile(OSError):
    """The path does not lead to a regular file."""


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


@contextlib.contextmanager
def open_regular(path: Path, flags: int) -> Iterator[int]:
    """
    Open a regular file for a block.

    Raises:
        IrregularFile: it is a symbolic link, a directory or a pipe; or it is opened for writing and
            has a second name, which may belong to another user.
    """
    try:
        descriptor = os.open(path, flags | _SAFE_FLAGS, 0o666)
    except OSError as exc:
        raise (IrregularFile(str(path)) if exc.errno in _IRREGULAR_ERRNOS else exc) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or (flags & os.O_RDWR and found.st_nlink > 1):
            raise IrregularFile(str(path))
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
            lock_now(draft.descriptor)
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
                with open_regular(path, os.O_RDONLY) as descriptor:
                    lock_now(descriptor)
                    path.unlink()
            except (BlockingIOError, PermissionError):
                # Its writer is still running, or it belongs to another user.
                yield entry
            except (FileNotFoundError, IrregularFile):
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
