"""
The leases under which the calling code runs.

Kept here and not in the Celery layer, so that a guard at the resource can find the token without
Celery.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

from celery_redlock.core.failures import Refusal
from celery_redlock.core.lease import Lease, holding_of
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.texts import shortened

if TYPE_CHECKING:
    from celery_redlock.transport import Transport

#: Innermost last. The second of a pair is the flow of control that entered the lease: a coroutine
#: or a thread that inherits the context runs under the lease, too, but may wait for its release.
Leases: TypeAlias = tuple[tuple[Lease, object], ...]

_current: ContextVar[Leases] = ContextVar("celery_redlock_leases", default=())


def current_lease() -> Lease | None:
    """
    Return the lease under which the calling code runs, or None.

    It is the lease of the innermost locking task, or block of `Redlock.lock` or
    `AsyncRedlock.lock`, that runs in this thread, greenlet or coroutine. A thread that a body
    starts does not inherit it; hand the lease over. A coroutine that a block starts does.
    """
    leases = _current.get()
    return leases[-1][0] if leases else None


def set_current_lease(lease: Lease | None) -> None:
    """Make `lease` the only one that the calling code runs under."""
    _current.set(() if lease is None else ((lease, _flow()),))


def current_leases() -> Leases:
    """Return all leases that the calling code runs under, for `set_current_leases`."""
    return _current.get()


def set_current_leases(leases: Leases) -> None:
    """Make these the leases that the calling code runs under."""
    _current.set(leases)


@contextlib.contextmanager
def under_lease(lease: Lease) -> Iterator[None]:
    """Make `lease` the innermost one for a block; blocks may end in any order."""
    _current.set((*_current.get(), (lease, _flow())))
    try:
        yield
    finally:
        _current.set(tuple(entry for entry in _current.get() if entry[0] is not lease))


def refuse_own_lock(transport: Transport, keys: Sequence[Key]) -> None:
    """
    Raise `LockContended` where the calling code asks for a lock that it holds itself.

    It may hold it through another client of the same nodes.

    Args:
        transport: to the nodes.
        keys: the keys that it asks for.
    """
    held: Counter[str] = Counter()
    for lease, flow in _current.get():
        same_nodes = set(holding_of(lease).transport.names) == set(transport.names)
        if not same_nodes or flow != _flow() or not lease.is_valid:
            continue
        held.update(key.lock for key in holding_of(lease).held_keys)
        if any(held[key.stored] >= key.holders for key in keys):
            own = holding_of(lease).asked_for
            raise Refusal(own[0], lease.owner, lease.expires_in, False, own, own).error(
                f"Lock {shortened(lease.key)!r} is held by the block or task that asks for it, and "
                "locks are not re-entrant. Use current_lease(), or hand the lease over."
            )


def _flow() -> object:
    """Return the running asyncio task, else what identifies the thread or greenlet."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()
