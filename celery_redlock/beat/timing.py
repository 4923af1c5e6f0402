"""
How long a leadership lasts, and how the times that bound it have to fit together.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.config.settings import RedlockSettings

__all__ = ["Timings", "read_timings"]

#: Seconds; a standby is to notice a clean stop soon, whatever the lease.
LONGEST_RETRY = 2.0
#: A short lease leaves room for so many tries all the same.
RETRIES_IN_A_LEASE = 6
DEADLINE_IN_A_LEASE = 2 / 3
#: The watchdog renews at a third of the lease.
RENEWAL_IN_A_LEASE = 1 / 3
#: What of a retry period the broker gets for one answer; the lock nodes get what is left.
BROKER_IN_A_RETRY = 3 / 4
#: So often the others try while a leader that could not work holds itself back.
CHANCES_FOR_OTHERS = 3
#: A large schedule may take long to load, and a leadership that ends over it helps nobody.
LEASES_IN_A_PASS = 10
SHORTEST_HOLD = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """
    The times that bound a leadership, in seconds.

    Attributes:
        ttl: the lease.
        renew_deadline: after so long without renewal a leader sends nothing.
        retry: how often a standby tries to lead, and how long a pass of the scheduler may take.
    """

    ttl: float
    renew_deadline: float
    retry: float

    @property
    def min_validity(self) -> float:
        """What the lease must have left for anything to be sent."""
        return self.ttl - self.renew_deadline

    @property
    def broker_timeout(self) -> float:
        """How long one answer of the broker is waited for."""
        return self.retry * BROKER_IN_A_RETRY

    @property
    def back_off(self) -> float:
        """How long a beat that could not work leaves the lead to others."""
        return self.retry * CHANCES_FOR_OTHERS

    @property
    def max_pass(self) -> float:
        """After so long a pass of the scheduler counts as hanging, and the lease is let go."""
        return max(self.ttl * LEASES_IN_A_PASS, SHORTEST_HOLD)


def read_timings(settings: RedlockSettings) -> Timings:
    """
    Return the timings that an app's settings come to.

    Raises:
        ConfigurationError: they do not fit together.
    """
    ttl = settings.beat_ttl
    if ttl is None:
        ttl = settings.defaults.get("ttl", min(LockOptions().ttl, settings.max_ttl))
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
            f"{problem}: the lease has to be longer than the renewal deadline, and that longer "
            f"than the retry period. {advice}"
        )
    if deadline <= ttl * RENEWAL_IN_A_LEASE:
        raise ConfigurationError(
            f"{problem}: a lease is renewed after a third of it, so the renewal deadline has to be "
            f"longer than {ttl * RENEWAL_IN_A_LEASE:.3g}. {advice}"
        )
    return Timings(ttl=ttl, renew_deadline=deadline, retry=retry)
