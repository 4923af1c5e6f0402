"""
A lease for event loops: its methods that wait for nodes are awaited.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redlock.core.aio.pool import CallPool
    from celery_redlock.core.lease import Lease
    from celery_redlock.errors import LossReason


class AsyncLease:
    """
    A lock that a quorum of nodes has granted to a coroutine: a `Lease`, for an event loop.

    Guarantee and limit are those of `Lease`. An event loop that is blocked past the lease is like a
    paused process, although the watchdog, which has a thread of its own, still extends the lease.

    Attributes:
        lease: the lease itself, whose methods block.
    """

    def __init__(self, lease: Lease, pool: CallPool) -> None:
        self.lease = lease
        self._pool = pool

    def __repr__(self) -> str:
        return f"<Async{repr(self.lease)[1:]}"

    @property
    def key(self) -> str:
        """The lock key as the caller gave it; the first of several."""
        return self.lease.key

    @property
    def keys(self) -> tuple[str, ...]:
        """The lock keys as the caller gave them, without those that are released already."""
        return self.lease.keys

    @property
    def slots(self) -> dict[str, int]:
        """The lease's slot of each key with a limit; none for a key with a rate."""
        return self.lease.slots

    @property
    def slot(self) -> int | None:
        """The slot of the first key with a limit; None if no key has one."""
        return self.lease.slot

    @property
    def owner(self) -> str:
        """The value that marks this lease on the nodes."""
        return self.lease.owner

    @property
    def fencing_token(self) -> int:
        """Larger than the token of every earlier holder; it never changes during the lease."""
        return self.lease.fencing_token

    @property
    def ttl(self) -> float:
        """The length to which each extension extends the lease, in seconds."""
        return self.lease.ttl

    @property
    def expires_in(self) -> float:
        """Seconds until the lease expires; 0.0 if it is lost, released, or another process's."""
        return self.lease.expires_in

    @property
    def is_valid(self) -> bool:
        """Whether the lease is valid at this instant."""
        return self.lease.is_valid

    @property
    def lost(self) -> LossReason | None:
        """Why the lease was lost; None while it is held, and if it was released in time."""
        return self.lease.lost

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is valid at this instant."""
        self.lease.check()

    async def extend(self, ttl: float | timedelta | None = None) -> None:
        """
        Extend the lease to `ttl` seconds from now; never shortens it.

        Args:
            ttl: the new length in seconds, for this extension and later ones. Default: the current
                `ttl`.

        Raises:
            LeaseLost: the lease was no longer valid, or a quorum of nodes no longer has it.
            QuorumUnavailable: no quorum replied; the lease keeps its remaining time.
        """
        await self._pool.run(partial(self.lease.extend, ttl))

    async def release(self) -> bool:
        """
        Release the lock. Never raises; may be called again.

        Once it has begun, the lock is released even if the caller is cancelled.

        Returns:
            Whether the lease was still valid and a quorum of nodes still had it.
        """
        return await self._pool.run(self.lease.release)
