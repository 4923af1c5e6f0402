"""
The times that bound a leadership, and how they have to fit together.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.settings import RedlockSettings

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
