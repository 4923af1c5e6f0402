"""
Which lease the calling code runs under.

Known here and not in the Celery layer, so that a guard at the resource can find the token without
Celery.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease

_current: ContextVar[Lease | None] = ContextVar("celery_redlock_lease", default=None)


def current_lease() -> Lease | None:
    """
    Return the lease under which the calling code runs, or None.

    It is the lease of the innermost locking task that runs in this thread or greenlet. A thread
    that a body starts does not inherit it; hand the lease over.
    """
    return _current.get()


def set_current_lease(lease: Lease | None) -> None:
    """Make `lease` the one that the calling code runs under."""
    _current.set(lease)
