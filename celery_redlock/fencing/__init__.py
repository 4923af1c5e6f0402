"""
Guards for the resources that a lock protects: a writer whose lock was given on is refused.

A lock cannot stop a holder that was paused past its lease from writing. The resource can: it
remembers the highest fencing token it has seen, and refuses what is older. Every guard here
compares and writes in one step, lets an equal token pass (one holder may write often), and raises
`StaleFencingToken` without a change when a newer token has been there.

Two rules. Tokens order the holders of one lock key, so write a resource under one and the same key
(a task that locks several has one token for all). And a holder that reads before it writes lets the
resource see its token before it reads (`claim`): otherwise an earlier holder's last write may fall
between that read and that write, and is lost although no token was stale.

Each guard is loaded when it is first asked for. `celery_redlock.fencing.sqlalchemy` and
`celery_redlock.fencing.django` are modules of their own; they need the extras of those names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_redlock.fencing.tokens import checked_token, token_or_current

if TYPE_CHECKING:
    from celery_redlock.fencing.file import FileFence
    from celery_redlock.fencing.http import (
        FENCING_HEADER,
        FENCING_KEY,
        AsgiFencingMiddleware,
        WsgiFencingMiddleware,
        fencing_headers,
        raise_if_stale,
    )
    from celery_redlock.fencing.redis import RedisFence
    from celery_redlock.fencing.redis_async import AsyncRedisFence
    from celery_redlock.fencing.s3 import S3Fence
    from celery_redlock.fencing.token_stores import (
        AsyncTokenStore,
        FileTokenStore,
        MemoryTokenStore,
        TokenStore,
    )

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
    "token_or_current",
]

_HOME = {
    "FENCING_HEADER": "http",
    "FENCING_KEY": "http",
    "AsgiFencingMiddleware": "http",
    "AsyncTokenStore": "token_stores",
    "AsyncRedisFence": "redis_async",
    "FileFence": "file",
    "FileTokenStore": "token_stores",
    "TokenStore": "token_stores",
    "MemoryTokenStore": "token_stores",
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
