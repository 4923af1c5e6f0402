"""
The lease of a leader, with a margin for sends that are under way when it ends.
"""

from __future__ import annotations

from celery_redlock._log import event_logger
from celery_redlock.beat.timing import Timings
from celery_redlock.core import Client, Lease
from celery_redlock.core.lease import watch

logger = event_logger(__name__)

#: Part of the longest pass after which the end of the extensions is postponed again.
NEW_END_AFTER = 1 / 4


class LeaderLease:
    """
    Whether a leader may send and write.

    The watchdog extends the lease whatever the leader does. So that a leader that hangs loses the
    lead, the extensions end at a set time, which `keep_extending` postpones.

    Args:
        client: the client of the lock nodes.
        lease: the lease on the schedule's lock.
        timings: the times that bound a leadership.
    """

    def __init__(self, client: Client, lease: Lease, timings: Timings) -> None:
        self._client = client
        self._lease = lease
        self._timings = timings
        self._now = client.transport.now
        self._end_set_at: float | None = None
        self._paused_since: float | None = None
        self._is_revoked = False
        self._has_released = False

    @property
    def token(self) -> int:
        """The leader's fencing token."""
        return self._lease.fencing_token

    @property
    def is_valid(self) -> bool:
        """Return whether the beat leads at this instant, and may write."""
        return self._lease.is_valid and not self._is_revoked

    @property
    def lost(self) -> str | None:
        """Why the lease was lost; None if it was not."""
        return self._lease.lost

    def keep_extending(self) -> None:
        """Let the watchdog extend the lease for as long as the longest pass may take from now."""
        now = self._now()
        hold = self._timings.max_pass
        if self._end_set_at is None or now >= self._end_set_at + hold * NEW_END_AFTER:
            self._end_set_at = now
            watch(self._lease, max_hold=hold)

    def can_send(self) -> bool:
        """Return whether the lease was extended within the deadline; log each change."""
        if not self.is_valid:
            return False
        if self._lease.expires_in > self._timings.min_validity:
            self._log_extended()
            return True
        if self._paused_since is None:
            self._paused_since = self._now()
            logger.warning(
                "beat-lease-not-extended",
                "The leader's lease has not been extended for %(seconds).3g s; the leader sends "
                "nothing until it is extended",
                seconds=self._timings.renew_deadline,
            )
        return False

    def revoke(self) -> None:
        """Allow no more writes and sends, although the lease looks valid: another beat leads."""
        self._is_revoked = True

    def release(self) -> None:
        """Release the lease. Call it again if a signal's exception cut the first call short."""
        if not self._has_released:
            self._has_released = True
            self._lease.release()
        else:
            # `Lease.release` sends only once, and an exception may have interrupted it before
            # anything was sent: delete the key explicitly.
            key = self._client.key_of(self._lease.key)
            self._client.evict(key.stored, self._lease.owner)

    def _log_extended(self) -> None:
        if self._paused_since is not None:
            away = self._now() - self._paused_since
            self._paused_since = None
            logger.warning(
                "beat-lease-extended-again",
                "The leader's lease is extended again, after a pause of %(seconds).1f s",
                seconds=away,
            )
