"""
The right to send: a lease, with a margin for what is under way when it ends.
"""

from __future__ import annotations

from celery.utils.log import get_logger

from celery_redlock.beat.timing import Timings
from celery_redlock.core import Lease, Redlock

__all__ = ["LeaderLease"]

logger = get_logger(__name__)

#: The hold gets a new end this often while the schedule goes on, in parts of the hold.
NEW_END_AFTER = 1 / 4


class LeaderLease:
    """
    What a leader may do, as long as it may.

    The watchdog renews the lease, whatever the leader does; so that a leader which hangs does not
    lead for ever, each hold has an end, and `keep_extending` puts it off.

    Args:
        redlock: the client.
        lease: the lease on the schedule's lock.
        timings: what bounds it.
    """

    def __init__(self, redlock: Redlock, lease: Lease, timings: Timings) -> None:
        self._redlock = redlock
        self._lease = lease
        self._timings = timings
        self._now = redlock.transport.now
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
        """Tell whether it leads at this instant, and may write."""
        return self._lease.is_valid and not self._is_revoked

    @property
    def lost(self) -> str | None:
        """Why it does not lead any more."""
        return self._lease.lost

    def keep_extending(self) -> None:
        """Have the lease renewed, from now on for the longest time that a pass may take."""
        now = self._now()
        hold = self._timings.max_pass
        if self._end_set_at is None or now >= self._end_set_at + hold * NEW_END_AFTER:
            self._end_set_at = now
            self._redlock.watch(self._lease, max_hold=hold)

    def can_send(self) -> bool:
        """Tell whether the lease was renewed within the deadline, and say when that changes."""
        if not self.is_valid:
            return False
        if self._lease.expires_in > self._timings.min_validity:
            self._log_extended()
            return True
        if self._paused_since is None:
            self._paused_since = self._now()
            logger.warning(
                "The leader's lease was not renewed for %.3g s; nothing is sent until it is",
                self._timings.renew_deadline,
            )
        return False

    def revoke(self) -> None:
        """Write and send nothing more, although the lease seems to hold: another one leads."""
        self._is_revoked = True

    def release(self) -> None:
        """Hand over; may be called again, where an exception from a signal has cut it short."""
        if not self._has_released:
            self._has_released = True
            self._lease.release()
        else:
            # A lease says its release once, and that may have been before it was said.
            self._redlock.reservations.evict(
                self._redlock.node_key(self._lease.key), self._lease.owner
            )

    def _log_extended(self) -> None:
        if self._paused_since is not None:
            away = self._now() - self._paused_since
            self._paused_since = None
            logger.warning("The leader's lease is renewed again, after a pause of %.1f s", away)
