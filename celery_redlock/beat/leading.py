"""
Leading: one leadership, from its lease to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery.utils.log import get_logger

from celery_redlock.beat.driving import Driving, Means
from celery_redlock.beat.leaders import leader_with
from celery_redlock.beat.mandate import Mandate
from celery_redlock.beat.missed import Missed
from celery_redlock.beat.publishing import Broker
from celery_redlock.beat.records import Records
from celery_redlock.beat.timings import Timings
from celery_redlock.beat.unsent import Unsent
from celery_redlock.core import Lease, Redlock, Register
from celery_redlock.errors import QuorumUnavailable, StaleFencingToken
from celery_redlock.signals import beat_leader_started, beat_leader_stopped

__all__ = ["Ending", "Leading"]

logger = get_logger(__name__)

STOPPED = "it was stopped"
#: How often a leader that may not send looks whether it may again, in parts of a retry period.
LOOK_AGAIN = 1 / 4
#: How often it tries to connect, likewise.
RECONNECT = 1 / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """
    Why a leadership ends before its beat does.

    Attributes:
        reason: for the log and for people.
        hold_back: how long this beat leaves the lead to others, in seconds.
    """

    reason: str
    hold_back: float = 0.0


class Leading:
    """
    A leadership: claim the records, build the wrapped scheduler, let it send, hand over.

    Each pass looks at the lease first, and comes back within the retry period as far as lock nodes
    and broker can be given a time limit.

    Args:
        scheduler: on whose behalf; the sender of the signals.
        redlock: the client.
        lease: the lease on the schedule's lock, just won.
        schedule: the schedule's name on the nodes.
        timings: what bounds a pass.
        build: makes the wrapped scheduler.
    """

    def __init__(
        self,
        scheduler: Any,
        redlock: Redlock,
        lease: Lease,
        schedule: str,
        timings: Timings,
        build: Callable[[], Any],
    ) -> None:
        now = redlock.transport.now
        self.ending: Ending | None = None
        self._scheduler = scheduler
        self._leader = leader_with(lease.owner, lease.fencing_token)
        self._name = schedule
        self._timings = timings
        self._build = build
        self._mandate = Mandate(redlock, lease, timings)
        self._means = Means(
            mandate=self._mandate,
            records=Records(
                Register(redlock, schedule),
                lease.fencing_token,
                pause=timings.retry,
                now=now,
                wall=lambda: scheduler.app.now().timestamp(),
            ),
            broker=Broker(scheduler.app, timings.broker_timeout, now),
            unsent=Unsent(timings.retry, now),
            missed=Missed(now),
            schedule=schedule,
            prefix=redlock.key_prefix,
        )
        self._has_warned = False
        self._driving: Driving | None = None
        self._has_told = False
        self._left_to_close = [
            self._write_last,
            self._close_schedule,
            self._release,
            self._means.broker.close,
            self._tell_stopped,
        ]

    @property
    def inner(self) -> Any:
        """The wrapped scheduler; None before it is built."""
        return None if self._driving is None else self._driving.inner

    def tick(self) -> float:
        """Make one pass; return the seconds until the next. Afterwards `ending` may be set."""
        try:
            return self._pass()
        except StaleFencingToken as exc:
            self._mandate.withdraw()
            return self._end(f"another beat leads: {exc}")

    def close(self) -> None:
        """
        Hand over; write nothing if the lease was lost before.

        Idempotent. A step that an exception from a signal cuts short is done again, and so are the
        others, before the exception goes on.
        """
        while self._left_to_close:
            try:
                self._left_to_close[0]()
            except Exception:
                logger.exception("A beat that stops leading goes on to do so")
            except BaseException:
                self.close()
                raise
            self._left_to_close.pop(0)

    def _pass(self) -> float:
        timings, means = self._timings, self._means
        self._mandate.go_on()
        if not self._mandate.holds:
            return self._end(f"its lease was lost: {self._mandate.lost}")
        if means.records.are_too_far_ahead:
            return self._end("the clock was set back by more than a day")
        means.records.say_set_back()
        if self._driving is None and not self._take_office():
            return timings.retry
        means.records.write()
        if not self._mandate.may_send():
            return timings.retry * LOOK_AGAIN
        if not means.broker.is_connected:
            return self._connect()
        delay = self._driving.tick() if self._driving is not None else 0.0
        means.records.write()
        return min(delay, timings.retry)

    def _take_office(self) -> bool:
        """Learn what earlier leaders did, and build the scheduler; tell whether it has worked."""
        try:
            previous = self._means.records.claim(self._leader)
        except QuorumUnavailable as exc:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "This beat leads schedule %r, and sends nothing before it knows what was sent "
                    "before it: %s Tried again in each pass",
                    self._name,
                    exc,
                )
            return False
        building_since = self._scheduler.app.now()
        self._driving = Driving(self._build(), self._means, building_since=building_since)
        self._tell_started("nobody led before" if previous is None else f"it follows {previous}")
        return True

    def _connect(self) -> float:
        """Connect to the broker, which may take all the time that a pass has."""
        broker = self._means.broker
        if broker.reach():
            return 0.0
        if broker.down_for > self._timings.ttl:
            return self._end(
                f"it could not reach the broker for {broker.down_for:.3g} s",
                hold_back=self._timings.withdrawal,
            )
        return self._timings.retry * RECONNECT

    def _end(self, reason: str, hold_back: float = 0.0) -> float:
        self.ending = Ending(reason=reason, hold_back=hold_back)
        return 0.0

    def _write_last(self) -> None:
        if self._mandate.holds:
            try:
                self._means.records.write(at_once=True)
            except StaleFencingToken:
                self._mandate.withdraw()

    def _close_schedule(self) -> None:
        # Not twice: what was cut short is not in a state to be closed in order.
        driving, self._driving = self._driving, None
        if driving is not None:
            driving.close()

    def _release(self) -> None:
        self._mandate.release()

    def _tell_started(self, reason: str) -> None:
        self._has_told = True
        logger.info(
            "Beat leads schedule %r with fencing token %d: %s. %d entries are recorded",
            self._name,
            self._mandate.token,
            reason,
            len(self._means.records),
        )
        beat_leader_started.send(sender=self._scheduler, token=self._mandate.token, reason=reason)

    def _tell_stopped(self) -> None:
        reason = STOPPED if self.ending is None else self.ending.reason
        say = logger.info if self.ending is None else logger.warning
        say("Beat no longer leads schedule %r: %s", self._name, reason)
        if self._has_told:
            self._has_told = False
            token = self._mandate.token
            beat_leader_stopped.send(sender=self._scheduler, token=token, reason=reason)
