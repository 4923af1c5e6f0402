"""
A fencing token in a file, and the lock under which it is compared.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

from celery_redlock.errors import FenceRecordCorrupt
from celery_redlock.fencing.drafts import RESERVED, Drafts, IrregularFile, open_regular
from celery_redlock.fencing.tokens import MAX_TOKEN, stale

__all__ = ["TokenFile", "sync_directory"]

_RETRY_DELAY = (0.001, 0.02)

#: More than a token has.
_MAX_BYTES = 32


class TokenFile:
    """
    The highest token that a resource has seen, in a file under the lock on another.

    They are `<path>.redlock-token` and `<path>.redlock-lock`. The lock is the kernel's and ends
    with the process that holds it, however it ends. Its file stays: who removed it would lock
    another file than those who have it open. It lists the drafts that are being written. The record
    is replaced, never changed in place, so a killed writer leaves the old one or the new one.

    Args:
        path: what the two files are named after.
        resource: what errors call the resource.
        timeout: seconds for which another process's lock is waited for.
        fsync: see that a record is on the disk before what follows it.
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
        """Keep other processes and threads out for a block, in which drafts can be made."""
        # Opened anew each time: the kernel's lock belongs to the open file, so threads that shared
        # one would not exclude each other, and a forked child would hold its parent's.
        with self._open(self._lock, os.O_RDWR | os.O_CREAT) as descriptor:
            self._lock_file(descriptor)
            try:
                yield Drafts(self._path, descriptor)
            finally:
                # Closing alone would leave it locked while a child that was forked meanwhile lives.
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def seen(self) -> int:
        """Return the token in the record, 0 if there is none."""
        try:
            with self._open(self.record, os.O_RDONLY) as descriptor:
                content = os.read(descriptor, _MAX_BYTES)
        except FileNotFoundError:
            return 0
        if (found := re.fullmatch(rb"([1-9][0-9]{0,15})\n?", content)) and (
            int(found[1]) <= MAX_TOKEN
        ):
            return int(found[1])
        raise FenceRecordCorrupt(
            f"The fence record {str(self.record)!r} holds something that is no fencing token, so "
            "nothing was written. Write the highest token that has written into it, as one line; "
            "or delete it, once no holder of an older token can still be running.",
            self.resource,
        )

    def needs_update(self, token: int) -> bool:
        """Tell whether the record has yet to rise to `token`; raise if it is older than that."""
        seen = self.seen()
        if seen > token:
            raise stale(self.resource, seen, token)
        return seen < token

    def claim(self, token: int, drafts: Drafts) -> None:
        """Raise the record to `token`, or raise that it is older. To be called under the lock."""
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
                    f"{str(path)!r} is a symbolic link, a directory or anything else than a file "
                    f"that belongs to the guard of {self.resource!r} alone, so nothing was "
                    "written. Remove it, once you know who has put it there.",
                    self.resource,
                ) from None
            yield descriptor

    def _lock_file(self, descriptor: int) -> None:
        give_up_at = time.monotonic() + self._timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= give_up_at:
                    raise TimeoutError(
                        f"Another process has held the lock on {str(self._lock)!r} for "
                        f"{self._timeout:g} s. It is needed for the moment of a write only: see "
                        "whether that process is stopped."
                    ) from None
                time.sleep(random.uniform(*_RETRY_DELAY))  # noqa: S311  # no secret
            else:
                return


def sync_directory(path: Path) -> None:
    """See that names which were added to a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
