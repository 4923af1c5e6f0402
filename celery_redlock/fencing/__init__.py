"""
Fences around the resources that a lock protects: they refuse a writer that has lost its lock.

A lock cannot keep a holder that was paused past its lease from writing. The resource can: it
remembers the highest fencing token that it has seen, and refuses older ones. Every fence here
compares and writes in one step, accepts an equal token (a holder may write often), and raises
`StaleFencingToken`, without changing anything, if the resource has seen a newer token.

Two rules apply. Tokens order the holders of one lock key, so always write a resource under the same
key (a task with several keys has one token for all). With a limit they order only the holders of
one slot, so each slot writes under a name of its own (`slot_resource`). And a holder that reads
before it writes must first let the resource see its token (`claim`): otherwise an earlier holder
may write between the read and the write, and its update is lost although no token was stale.

A fence is imported when it is first used. `celery_redlock.fencing.sqlalchemy` and
`celery_redlock.fencing.django` are modules of their own; they need the extras of the same names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_redlock.core.validation import checked_token
from celery_redlock.fencing.arguments import slot_resource, token_or_current

if TYPE_CHECKING:
    from celery_redlock.fencing.file import FileFence, FileTokenStore
    from celery_redlock.fencing.http import (
        FENCING_HEADER,
        FENCING_KEY,
        AsgiFencingMiddleware,
        AsyncTokenStore,
        MemoryTokenStore,
        TokenStore,
        WsgiFencingMiddleware,
        fencing_headers,
        raise_if_stale,
    )
    from celery_redlock.fencing.redis import AsyncRedisFence, RedisFence
    from celery_redlock.fencing.s3 import S3Fence

__all__ = [
    "FENCING_HEADER",
    "FENCING_KEY",
    "AsgiFencingMiddleware",
    "AsyncRedisFence",
    "AsyncTokenStore",
    "FileFence",
    "FileTokenStore",
    "MemoryTokenStore",
    "RedisFence",
    "S3Fence",
    "TokenStore",
    "WsgiFencingMiddleware",
    "checked_token",
    "fencing_headers",
    "raise_if_stale",
    "slot_resource",
    "token_or_current",
]

_HOME = {
    "FENCING_HEADER": "http",
    "FENCING_KEY": "http",
    "AsgiFencingMiddleware": "http",
    "AsyncTokenStore": "http",
    "AsyncRedisFence": "redis",
    "FileFence": "file",
    "FileTokenStore": "file",
    "TokenStore": "http",
    "MemoryTokenStore": "http",
    "RedisFence": "redis",
    "S3Fence": "s3",
    "WsgiFencingMiddleware": "http",
    "fencing_headers": "http",
    "raise_if_stale": "http",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
