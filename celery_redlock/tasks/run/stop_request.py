"""
Keeping the lock of a body that was asked to stop, until it has ended.
"""

from __future__ import annotations

import threading
import time

from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from celery_redlock._log import event_logger
from celery_redlock.core import Lease, Reservation
from celery_redlock.core.retry import DEFAULT_WAIT
from celery_redlock.errors import LockNotAcquired, LossReason
from celery_redlock.tasks.message.in_words import reason_of
from celery_redlock.tasks.run.lock_request import LockRequest

__all__ = ["StoppingLock"]

logger = event_logger(__name__)

#: Retry budget in seconds while no quorum replies; the body is not notified meanwhile.
RETRY_FOR = 1.0


class StoppingLock:
    """
    The lock of one run that newer runs may replace (`lock_overlap="replace"`).

    A newer run asks by acquiring the stop-request keys, and so the lease is lost: the body has to
    stop. A lost lease is not extended, but the body may take longer to unwind than the keys last.
    So they are taken over from it here, under another owner value, and extended until the body has
    ended; only then the newer run can acquire them.

    """

    __slots__ = ("_began", "_lease", "_lock", "_lock_request", "_over", "_retained")

    def __init__(self, lock_request: LockRequest, lease: Lease) -> None:
        self._lock_request = lock_request
        self._lease = lease
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._over = False
        self._retained: Lease | None = None

    def retain(self) -> bool:
        """
        Keep the keys if a newer run has asked for them; return whether one has.

        For the thread that is notified of the loss.
        """
        with self._lock:
            if self._over or not self._is_stop_requested():
                return False
            self._retained = self._take_over()
            return True

    def close(self) -> None:
        """The body has ended: from now on no newer run needs to ask it. For the body's thread."""
        if not self._lease.lost:
            self._lease.release_keys(self._lock_request.stop_request_keys)

    def end(self) -> tuple[Lease, bool]:
        """Return the lease that has the keys now, and whether all that it lost was asked for."""
        with self._lock:
            self._over = True
            if self._retained is None:
                return self._lease, bool(self._lease.lost) and self._is_stop_requested()
            # Its owner value may still stand on nodes that did not hear of the change.
            self._lease.release()
            return self._retained, False

    @property
    def _retry_for(self) -> float:
        return min(RETRY_FOR, self._lock_request.options.ttl / 3)

    def _is_stop_requested(self) -> bool:
        lock_request, owner = self._lock_request, self._lease.owner
        node_keys, stop_request_keys = lock_request.node_keys, lock_request.stop_request_keys
        # A quorum has just replied that the keys are gone: one that is late now replies soon.
        retry_for = self._retry_for if self._lease.lost is LossReason.GONE else 0.0
        asking = Retrying(
            retry=retry_if_exception_type(LockNotAcquired),
            stop=stop_after_delay(retry_for),
            wait=DEFAULT_WAIT,
            reraise=True,
        )
        inspect = lock_request.redlock.reservations.inspect
        try:
            held = asking(inspect, (*node_keys, *stop_request_keys))
        except LockNotAcquired as error:
            logger.warning(
                "stop-request-unknown",
                "Task %(task)s[%(task_id)s] lost its lease, and whether a newer run asked for it "
                "is not known: %(reason)s",
                task=lock_request.task.name,
                task_id=lock_request.request.id,
                reason=reason_of(error, lock_request.redlock),
            )
            return False
        owners = [None if found is None else found.owner for found in held]
        keys, beside = owners[: len(node_keys)], owners[len(node_keys) :]
        return set(keys) == {owner} and set(beside) != {owner}

    def _take_over(self) -> Lease | None:
        lock_request, options = self._lock_request, self._lock_request.options
        extras = (lock_request.dedupe_key,) if lock_request.dedupe_key else ()
        age = time.monotonic() - self._began
        try:
            retained = lock_request.redlock.reservations.acquire_for_task(
                lock_request.keys,
                extras,
                ttl=options.ttl,
                wait=self._retry_for,
                label=lock_request.label,
                at_least_for=0.0
                if lock_request.holds_until_postrun
                else max(0.0, options.at_least_for - age),
                reservation=Reservation(
                    node_keys=(*lock_request.node_keys, *extras),
                    owner=self._lease.owner,
                    expires_at=time.time() + options.ttl,
                ),
            )
        except LockNotAcquired as error:
            logger.warning(
                "stop-request-lease-not-extended",
                "The lock of task %(task)s[%(task_id)s], which a newer run has asked to stop, "
                "cannot be extended until it has: if it takes longer than %(seconds).3g s, the "
                "newer one begins beside it. %(reason)s",
                task=lock_request.task.name,
                task_id=lock_request.request.id,
                seconds=options.ttl,
                reason=reason_of(error, lock_request.redlock),
            )
            return None
        lock_request.redlock.watch(retained, max_hold=max(options.ttl, options.max_hold - age))
        return retained
