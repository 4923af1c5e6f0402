"""
Files that are written under a name of their own and take another's place when they are whole.

Others may be able to write in the same directory. So a draft's name cannot be guessed, it is never
a file that was there before, and nothing here follows a symbolic link or waits for a pipe. A writer
that is killed leaves its draft. The names of all drafts are in the file whose lock is held while
one is made, and the next writer removes those that nobody keeps locked any more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RESERVED", "Draft", "Drafts", "IrregularFile", "open_regular"]

#: How the last part of every name begins that is made here.
RESERVED = ".redlock-"

_ENTRY = re.compile(rb"[0-9a-f]{16}")

#: Whatever stands under a name, opening it changes and waits for nothing.
_SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_IRREGULAR_ERRNOS = {errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO}


class IrregularFile(OSError):
    """There is something else than a regular file under a name."""


@contextlib.contextmanager
def open_regular(path: Path, flags: int) -> Iterator[int]:
    """
    Open a regular file for a block.

    Raises:
        IrregularFile: it is a symbolic link, a directory, a pipe; or it is to be written in place
            and has a second name, under which it may be somebody else's.
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
    A new file, which its writer keeps locked until it is closed.

    Attributes:
        descriptor: of the file; `close` closes it.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.descriptor = descriptor
        self._path = path

    def replace(self, target: Path) -> None:
        """Put the file in the place of another."""
        self._path.replace(target)

    def close(self) -> None:
        """Close the file, and remove it if it has replaced nothing."""
        try:
            # Its name may have become another file's since.
            if os.path.samestat(self._path.lstat(), os.fstat(self.descriptor)):
                self._path.unlink()
        except FileNotFoundError:
            pass
        finally:
            os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class Drafts:
    """
    The drafts of what is named after one path, for as long as their list's lock is held.

    Attributes:
        path: what they are named after, and lie beside.
        entries: the list, an open file.
    """

    path: Path
    entries: int

    def create(self, target: Path) -> Draft:
        """Return a new, empty file that is to replace `target`, with its mode if that exists."""
        entries = [*self._remove_abandoned(), secrets.token_hex(8).encode()]
        # First in the list: a writer that is killed in between leaves an entry and no file.
        content = b"".join(entry + b"\n" for entry in entries)
        os.ftruncate(self.entries, os.pwrite(self.entries, content, 0))
        path, mode = self._path_of(entries[-1]), _mode_of(target)
        # Nobody who may not read what is there now may open what is to replace it.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS
        draft = Draft(path, os.open(path, flags, 0o666 if mode is None else mode))
        try:
            fcntl.flock(draft.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if mode is not None:
                os.fchmod(draft.descriptor, mode)
        except BaseException:
            draft.close()
            raise
        return draft

    def _remove_abandoned(self) -> Iterator[bytes]:
        """Remove the drafts whose writers are gone; give the entries of the others."""
        listed = os.pread(self.entries, os.fstat(self.entries).st_size, 0).split()
        # Who can write the list could otherwise have any file removed.
        for entry in filter(_ENTRY.fullmatch, listed):
            path = self._path_of(entry)
            try:
                with open_regular(path, os.O_RDONLY) as descriptor:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            except (BlockingIOError, PermissionError):
                # Still being written, or another user's to remove.
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
