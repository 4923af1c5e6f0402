"""
Stores that remember the highest token of each named resource.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Awaitable
from typing import Protocol

from celery_redlock.errors import ConfigurationError
from celery_redlock.fencing.checks import checked_path
from celery_redlock.fencing.drafts import RESERVED
from celery_redlock.fencing.token_file import TokenFile
from celery_redlock.fencing.tokens import stale, token_or_current


class TokenStore(Protocol):
    """
    Remembers the highest token that each resource has seen.

    `RedisFence`, `FileTokenStore` and `MemoryTokenStore` are token stores; so is any other
    object with this method.
    """

    def claim(self, resource: str, token: int | None = None, /) -> None:
        """
        Let a resource see a token.

        Raises:
            StaleFencingToken: the resource has seen a newer one.
        """


class AsyncTokenStore(Protocol):
    """A token store for asyncio, such as `AsyncRedisFence`."""

    def claim(self, resource: str, token: int | None = None, /) -> Awaitable[None]:
        """Let a resource see a token; see `TokenStore.claim`."""


class MemoryTokenStore:
    """
    A store in this process's memory, for tests and for a service with a single process.

    Limit: other processes do not share it, and a restart loses all tokens.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()

    def claim(self, resource: str, token: int | None = None) -> None:
        """Let a resource see a token; raise `StaleFencingToken` if it has seen a newer one."""
        number = token_or_current(token)
        with self._lock:
            seen = self._seen.get(resource, 0)
            if seen > number:
                raise stale(resource, seen, number)
            self._seen[resource] = number


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
