"""
Keeping the lock of a body that was asked to stop, until it has ended.
"""

from __future__ import annotations

import threading
import time

from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from celery_redlock._log import event_logger
from celery_redlock.core import Lease, Reservation
from celery_redlock.core.lease import holding_of, release_keys, watch
from celery_redlock.core.settings import DEFAULT_POLICY
from celery_redlock.errors import LockNotAcquired, LossReason
from celery_redlock.protocol.keys import places_of
from celery_redlock.tasks.message.in_words import reason_of
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.tasks.run.lock_request import LockRequest

logger = event_logger(__name__)

#: Seconds between the extensions of a body that may be asked to stop; the next one finds out.
STOP_SEEN_WITHIN = 0.5
#: Retry budget in seconds while no quorum replies; the body is not notified meanwhile. Later tries
#: are `RETRY_PAUSE` seconds apart.
RETRY_FOR, RETRY_PAUSE = 1.0, 0.25


class StoppingLock:
    """
    The lock of one call that a newer one may ask to stop (`lock_on_conflict="stop"`).

    A newer call asks the body to stop by acquiring the stop-request keys, so the body's lease is
    lost. A lost lease is not extended, but the body may take longer to unwind than the lock keys
    last. So these are taken over from the lease, under another owner value, and extended until the
    body has ended; only then can the newer call acquire them.
    """

    __slots__ = ("_began", "_lease", "_lock", "_lock_request", "_over", "_retained")

    def __init__(self, lock_request: LockRequest, lease: Lease) -> None:
        self._lock_request = lock_request
        self._lease = lease
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._over = False
        self._retained: Lease | None = None

    def retain(self) -> bool | None:
        """
        Keep the keys if a newer call has asked for them; return whether one has, None if unknown.

        The thread that is notified of the loss calls it, and then `keep_trying`.
        """
        with self._lock:
            if self._over:
                return False
            asked = self._is_stop_requested()
            if asked:
                self._retained = self._take_over()
            return asked

    def keep_trying(self) -> None:
        """Repeat `retain` until the keys are kept, or the body or their validity has ended."""
        holding = holding_of(self._lease)
        while not self._over and self._retained is None and holding.now() < holding.valid_until:
            time.sleep(RETRY_PAUSE)
            if self.retain() is False:
                return

    def close(self) -> None:
        """Release the stop-request keys when the body has ended. The body's thread calls it."""
        if not self._lease.lost:
            release_keys(self._lease, self._lock_request.stop_request_keys)

    def end(self) -> tuple[Lease, bool]:
        """Return the lease that has the keys now, and whether a newer call's request ended it."""
        with self._lock:
            self._over = True
            if self._retained is None:
                return self._lease, bool(self._lease.lost and self._is_stop_requested())
            # The first lease's owner value may still be on nodes that missed the change.
            self._lease.release()
            return self._retained, False

    @property
    def _retry_for(self) -> float:
        return min(RETRY_FOR, self._lock_request.options.ttl / 3)

    def _is_stop_requested(self) -> bool | None:
        lock_request, owner = self._lock_request, self._lease.owner
        own = self._own_names
        beside = places_of(lock_request.stop_request_keys)
        # A quorum has just replied that the keys are gone, so a node that is late replies soon.
        is_gone = self._lease.lost is LossReason.GONE
        asking = Retrying(
            retry=retry_if_exception_type(LockNotAcquired),
            stop=stop_after_delay(self._retry_for if is_gone else 0.0),
            wait=DEFAULT_POLICY,
            reraise=True,
        )
        inspect = lock_request.client.inspect
        try:
            held = asking(inspect, (*own, *beside))
        except LockNotAcquired as error:
            logger.warning(
                "stop-request-unknown",
                "Task %(task)s[%(task_id)s] lost its lease, and it is not known whether a newer "
                "call asked for it: %(reason)s",
                task=lock_request.task.name,
                task_id=lock_request.request.id,
                reason=reason_of(error),
            )
            return None
        owners = [None if found is None else found.owner for found in held]
        is_ours = set(owners[: len(own)]) == {owner}
        # A request that came to nothing meanwhile has ended the lease all the same.
        return is_ours and (is_gone or set(owners[len(own) :]) != {owner})

    @property
    def _own_names(self) -> tuple[str, ...]:
        """The names on the nodes of the lock keys, and of the slots that the lease has."""
        return holding_of(self._lease).names_of(self._lock_request.held_keys)

    def _take_over(self) -> Lease | None:
        lock_request, options = self._lock_request, self._lock_request.options
        extras = (lock_request.dedupe_key,) if lock_request.dedupe_key else ()
        age = time.monotonic() - self._began
        try:
            retained = lock_request.client.acquire_for_task(
                lock_request.held_keys,
                extras,
                ttl=options.ttl,
                wait=self._retry_for,
                label=lock_request.label_as(Role.RUNNING),
                at_least_for=0.0
                if lock_request.holds_until_postrun
                else max(0.0, options.at_least_for - age),
                reservation=Reservation(
                    node_keys=(*self._own_names, *extras),
                    owner=self._lease.owner,
                    expires_at=time.time() + options.ttl,
                ),
                is_held=True,
            )
        except LockNotAcquired as error:
            logger.warning(
                "stop-request-lease-not-extended",
                "Task %(task)s[%(task_id)s] was asked to stop by a newer call, which may begin "
                "beside it after %(seconds).3g s, because its lock is not extended yet: %(reason)s",
                task=lock_request.task.name,
                task_id=lock_request.request.id,
                seconds=options.ttl,
                reason=reason_of(error),
            )
            return None
        watch(retained, max_hold=max(options.ttl, options.max_hold - age))
        return retained
