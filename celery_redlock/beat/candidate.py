"""
A candidate for the lead of a schedule: it tries to acquire the lease at randomized intervals.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from celery_redlock._log import event_logger
from celery_redlock.beat.leader_lease import Timings
from celery_redlock.beat.leader_record import beat_label, parse_leader
from celery_redlock.core import Client, Lease
from celery_redlock.errors import LockContended, QuorumUnavailable

logger = event_logger(__name__)

#: Shortest pause between two attempts, as a part of the retry period; the longest is the whole
#: period. Candidates that began together drift apart.
MIN_PAUSE = 0.6
#: Seconds after the end of the leader's lease within which the candidates try.
SCATTER = 0.05


class Candidate:
    """
    The part of a beat that contends for the lead of a schedule.

    It tries once in each retry period, and once when the leader's lease is about to end. It logs a
    new leader once, an outage of the lock nodes once, and the end of that outage once.

    Args:
        client: the client of the lock nodes.
        key: the schedule's lock key.
        timings: the lease and the retry period.
        uniform: as `random.uniform`.
    """

    def __init__(
        self,
        client: Client,
        key: str,
        timings: Timings,
        *,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._client = client
        self._key = key
        self._timings = timings
        self._uniform = uniform
        self._now = client.transport.now
        self._label = beat_label()
        self._next_at = self._now()
        self._known_leader: str | None = None
        self._unavailable_since: float | None = None
        self._attempting = False
        self._back_off = 0.0

    @property
    def pause(self) -> float:
        """Seconds until the next attempt, at most a retry period."""
        return min(max(0.0, self._next_at - self._now()), self._timings.retry)

    def attempt(self) -> Lease | None:
        """
        Try to acquire the lease if it is time to. Never waits for long, never raises for a lock.

        The caller confirms the lease with `accept`; until then `abandon` releases it.
        """
        if self._now() < self._next_at:
            return None
        self._attempting = True
        lease = None
        try:
            lease = self._client.acquire_for_task(
                (self._key,), ttl=self._timings.ttl, label=self._label
            )
        except LockContended as exc:
            self._log_available()
            self._log_leader(exc)
            self._wait(exc.expires_in)
        except QuorumUnavailable as exc:
            self._log_unavailable(exc)
            self._wait()
        else:
            self._log_available()
            self._known_leader = None
            self._wait()
        self._attempting = lease is not None
        return lease

    def accept(self) -> None:
        """Note that a leadership is responsible for the lease that was returned."""
        self._attempting = False

    def back_off(self, seconds: float, *, has_led: bool) -> None:
        """
        Make no attempt for a while, after a leadership.

        Args:
            seconds: for how long at least.
            has_led: whether the leadership could send. Each one in a row that could not doubles the
                pause, from a retry period up to a lease.
        """
        retry, ttl = self._timings.retry, self._timings.ttl
        doubled = 0.0 if has_led else min(max(retry, 2 * self._back_off), ttl)
        self._back_off = max(seconds, doubled)
        self._next_at = self._now() + self._back_off

    def abandon(self) -> None:
        """
        Release the key of an attempt that an exception cut short before `accept`. Never raises.

        The label identifies the key: the interrupted attempt returned no owner value.
        """
        if not self._attempting:
            return
        try:
            place = self._client.key_of(self._key).stored
            (held,) = self._client.inspect((place,))
            if held is not None and held.owner.endswith(self._label):
                self._client.evict(place, held.owner)
        except Exception as exc:
            logger.warning(
                "beat-lock-left",
                "The lock %(key)r may stay held until its lease expires: %(error)s",
                key=self._key,
                error=exc,
            )
        self._attempting = False

    def _wait(self, holder_ends_in: float | None = None) -> None:
        retry = self._timings.retry
        pause = self._uniform(MIN_PAUSE * retry, retry)
        if holder_ends_in is not None and holder_ends_in >= 0:
            pause = min(pause, holder_ends_in + self._uniform(0.0, min(SCATTER, retry)))
        self._next_at = self._now() + pause

    def _log_leader(self, exc: LockContended) -> None:
        if exc.split or exc.holder is None or exc.holder == self._known_leader:
            return
        self._known_leader = exc.holder
        logger.info(
            "beat-waits-to-lead",
            "Beat waits to lead schedule %(schedule)r: %(leader)s leads; its lease has "
            "%(seconds).3g s left unless extended",
            schedule=self._key,
            leader=parse_leader(exc.holder) or f"a holder that is not a beat ({exc.holder!r})",
            seconds=exc.expires_in or 0.0,
            holder=exc.holder,
        )

    def _log_unavailable(self, exc: QuorumUnavailable) -> None:
        if self._unavailable_since is not None:
            return
        self._unavailable_since = self._now()
        logger.warning(
            "beat-cannot-lead",
            "No beat can lead schedule %(schedule)r: %(error)s This beat tries again every "
            "%(seconds).3g s, and logs when the outage ends",
            schedule=self._key,
            error=exc,
            seconds=self._timings.retry,
        )

    def _log_available(self) -> None:
        if self._unavailable_since is None:
            return
        away = self._now() - self._unavailable_since
        self._unavailable_since = None
        logger.warning(
            "beat-quorum-back",
            "A quorum of lock nodes answers again for schedule %(schedule)r, after %(seconds).1f s",
            schedule=self._key,
            seconds=away,
        )
