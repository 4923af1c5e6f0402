"""
The lease of a leader: the times that bound it, and what the leader may do with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_redlock._log import event_logger
from celery_redlock.core import Client, Lease
from celery_redlock.core.lease import watch
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.settings import RedlockSettings

logger = event_logger(__name__)

#: Seconds. A candidate notices a clean stop within this time, however long the lease is.
LONGEST_RETRY = 2.0
#: A short lease still leaves time for this many attempts.
RETRIES_IN_A_LEASE = 6
DEADLINE_IN_A_LEASE = 2 / 3
#: The watchdog extends a lease after a third of it.
EXTEND_AFTER = 1 / 3
#: Part of a retry period that the broker has for one answer; the lock nodes have the rest.
BROKER_IN_A_RETRY = 3 / 4
#: Retry periods for which a leader that could not work leaves the lead to other candidates.
CHANCES_FOR_OTHERS = 3
#: Loading a large schedule may take long, and must not cost the leadership.
LEASES_IN_A_PASS = 10
SHORTEST_HOLD = 60.0
#: Part of the longest pass after which the end of the extensions is postponed again.
NEW_END_AFTER = 1 / 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """
    The times that bound a leadership, in seconds.

    Attributes:
        ttl: the length of the lease.
        renew_deadline: a leader whose lease was not extended for this long sends nothing.
        retry: the interval between two attempts of a candidate, and the target upper bound for one
            pass of the scheduler.
    """

    ttl: float
    renew_deadline: float
    retry: float

    @property
    def min_validity(self) -> float:
        """The remaining validity that a lease needs before anything is sent."""
        return self.ttl - self.renew_deadline

    @property
    def broker_timeout(self) -> float:
        """How long to wait for one answer of the broker."""
        return self.retry * BROKER_IN_A_RETRY

    @property
    def back_off(self) -> float:
        """How long a beat that could not work is no candidate."""
        return self.retry * CHANCES_FOR_OTHERS

    @property
    def max_pass(self) -> float:
        """A pass of the scheduler that takes longer counts as hanging, and the lease expires."""
        return max(self.ttl * LEASES_IN_A_PASS, SHORTEST_HOLD)


def read_timings(settings: RedlockSettings) -> Timings:
    """
    Return the timings that follow from an app's settings.

    Raises:
        ConfigurationError: they do not fit together.
    """
    ttl = settings.ttl if settings.beat_ttl is None else settings.beat_ttl
    deadline, retry = settings.beat_renew_deadline, settings.beat_retry
    if deadline is None:
        deadline = ttl * DEADLINE_IN_A_LEASE
    if retry is None:
        retry = min(LONGEST_RETRY, ttl / RETRIES_IN_A_LEASE)
    problem = (
        f"redlock_beat_ttl={ttl:g}, redlock_beat_renew_deadline={deadline:g} and "
        f"redlock_beat_retry={retry:g} seconds do not fit"
    )
    advice = (
        "Leave the last two out, which then follow from the first, or give for example "
        f"{ttl:g}, {ttl * DEADLINE_IN_A_LEASE:.3g} and {ttl / RETRIES_IN_A_LEASE:.3g}."
    )
    if ttl > settings.max_ttl:
        raise ConfigurationError(
            f"redlock_beat_ttl={ttl:g} is above redlock_max_ttl={settings.max_ttl:g}; lower it, or "
            "raise redlock_max_ttl in all processes that use these nodes."
        )
    if not ttl > deadline > retry:
        raise ConfigurationError(
            f"{problem}: the lease has to be longer than the deadline, and the deadline longer "
            f"than the retry period. {advice}"
        )
    if deadline <= ttl * EXTEND_AFTER:
        raise ConfigurationError(
            f"{problem}: a lease is extended after a third of it, so the deadline must be "
            f"longer than {ttl * EXTEND_AFTER:.3g}. {advice}"
        )
    return Timings(ttl=ttl, renew_deadline=deadline, retry=retry)


class LeaderLease:
    """
    Whether a leader may send and write, with a margin for sends that are under way when it ends.

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
