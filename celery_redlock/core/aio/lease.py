"""
A lease for event loops: its methods that wait for nodes are awaited.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from celery_redlock.core.lease import Lease, LeaseFacts, holding_of

if TYPE_CHECKING:
    from celery_redlock.core.aio.pool import CallPool


class AsyncLease(LeaseFacts):
    """
    A lock that a quorum of nodes has granted to a coroutine: a `Lease`, for an event loop.

    Guarantee and limit are those of `Lease`. An event loop that is blocked past the lease is like a
    paused process, although the watchdog, which has a thread of its own, still extends the lease.

    Attributes:
        lease: the lease itself, whose methods block.
    """

    def __init__(self, lease: Lease, pool: CallPool) -> None:
        super().__init__(holding_of(lease))
        self.lease = lease
        self._pool = pool

    def __repr__(self) -> str:
        return f"<Async{repr(self.lease)[1:]}"

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
