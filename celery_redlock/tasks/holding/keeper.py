"""
Keeping the lock of a body that was asked to stop, until it has ended.
"""

from __future__ import annotations

import threading
import time

from celery.utils.log import get_logger

from celery_redlock.core import Lease, Reservation
from celery_redlock.errors import LockNotAcquired
from celery_redlock.tasks.holding.arrival import Claim

__all__ = ["Keeper"]

logger = get_logger(__name__)

#: So long it tries again where the nodes do not answer; the body is told meanwhile of nothing.
PATIENCE = 1.0


class Keeper:
    """
    The lock of one run that newer runs may replace (`lock_overlap="replace"`).

    A newer run asks by taking the companions of the lock's keys, and so the lease is lost: the
    body has to stop. A lost lease is renewed no more, but the body may take longer to unwind than
    the keys last. So they are taken over from it here, under another owner value, and renewed until
    the body has ended; only then the newer run gets them.

    """

    __slots__ = ("_began", "_claim", "_lease", "_lock", "_over", "_relief")

    def __init__(self, claim: Claim, lease: Lease) -> None:
        self._claim = claim
        self._lease = lease
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._over = False
        self._relief: Lease | None = None

    def relieve(self) -> bool:
        """
        Keep the keys if a newer run has asked for them; return whether one has.

        For the thread that is told of the loss.
        """
        with self._lock:
            if self._over or not self._is_asked():
                return False
            self._relief = self._take_over()
            return True

    def close(self) -> None:
        """The body has ended: from now on no newer run needs to ask it. For the body's thread."""
        if not self._lease.lost:
            self._lease.release_keys(self._claim.companions)

    def end(self) -> tuple[Lease, bool]:
        """Return the lease that has the keys now, and whether all that it lost was asked for."""
        with self._lock:
            self._over = True
            if self._relief is None:
                return self._lease, bool(self._lease.lost) and self._is_asked()
            # Its owner value may still stand on nodes that did not hear of the change.
            self._lease.release()
            return self._relief, False

    def _is_asked(self) -> bool:
        claim, owner = self._claim, self._lease.owner
        places, companions = claim.places, claim.companions
        try:
            held = claim.redlock.reservations.inspect((*places, *companions))
        except LockNotAcquired as error:
            logger.warning(
                "Task %s[%s] lost its lease, and whether a newer run asked for it is not known: %s",
                claim.task.name,
                claim.request.id,
                error,
            )
            return False
        owners = [None if found is None else found.owner for found in held]
        keys, beside = owners[: len(places)], owners[len(places) :]
        return set(keys) == {owner} and set(beside) != {owner}

    def _take_over(self) -> Lease | None:
        claim, options = self._claim, self._claim.options
        extras = (claim.message,) if claim.message else ()
        age = time.monotonic() - self._began
        try:
            relief = claim.redlock.reservations.acquire_for_task(
                claim.keys,
                extras,
                ttl=options.ttl,
                wait=min(PATIENCE, options.ttl / 3),
                label=claim.label,
                at_least_for=0.0 if claim.marks else max(0.0, options.at_least_for - age),
                reservation=Reservation(
                    node_keys=(*claim.places, *extras),
                    owner=self._lease.owner,
                    expires_at=time.time() + options.ttl,
                ),
            )
        except LockNotAcquired as error:
            logger.warning(
                "The lock of task %s[%s], which a newer run has asked to stop, cannot be renewed "
                "until it has: if it takes longer than %.3g s, the newer one begins beside it. %s",
                claim.task.name,
                claim.request.id,
                options.ttl,
                error,
            )
            return None
        claim.redlock.watch(relief, max_hold=max(options.ttl, options.max_hold - age))
        return relief
