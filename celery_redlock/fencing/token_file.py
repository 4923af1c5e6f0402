"""
A file with the highest fencing token of a resource, and the lock for comparing the token.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from celery_redlock.errors import FenceRecordCorrupt
from celery_redlock.fencing.drafts import (
    RESERVED,
    Drafts,
    IrregularFile,
    lock_now,
    open_regular,
    unlock,
)
from celery_redlock.fencing.tokens import stale, token_in

_RETRY_DELAY = (0.001, 0.02)

#: More bytes than a token has.
_MAX_BYTES = 32


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
                unlock(descriptor)

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
                descriptor = stack.enter_context(open_regular(path, flags))
            except IrregularFile:
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
                lock_now(descriptor)
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
