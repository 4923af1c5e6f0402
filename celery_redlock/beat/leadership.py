"""
One leadership of a beat, from the acquired lease to the hand-over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.beat.broker import Broker
from celery_redlock.beat.leader_lease import LeaderLease
from celery_redlock.beat.leader_record import own_leader_info
from celery_redlock.beat.leader_scheduler import LeaderContext, lead_with
from celery_redlock.beat.missed_runs import MissedRuns
from celery_redlock.beat.retry_queue import RetryQueue
from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.beat.timing import Timings
from celery_redlock.core import Client, Lease, Register, VersionedValue
from celery_redlock.errors import QuorumUnavailable, StaleFencingToken
from celery_redlock.signals import beat_leader_started, beat_leader_stopped

logger = event_logger(__name__)

STOPPED = "it was stopped"
#: Part of a retry period after which a leader that may not send checks its lease again.
RECHECK = 1 / 4
#: Part of a retry period after which a leader tries again to connect to the broker.
RECONNECT = 1 / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """
    Why a leadership ends before its beat does.

    Attributes:
        reason: for the log and for the signal.
        back_off: seconds for which this beat is no candidate, at least.
        has_led: whether its scheduler could send at all.
    """

    reason: str
    back_off: float
    has_led: bool


class Leadership:
    """
    One leadership: claim the register, build the wrapped scheduler, let it send, hand over.

    Each pass checks the lease first, and returns within the retry period as far as lock nodes and
    broker honour a time limit.

    Args:
        scheduler: the beat's scheduler; the sender of the signals.
        client: the client of the lock nodes.
        lease: the lease on the schedule's lock, just acquired.
        schedule: the schedule's name on the nodes.
        timings: the times that bound a leadership.
        build: makes the wrapped scheduler.
        remembered: the `records` of this beat's last leadership.
    """

    def __init__(
        self,
        scheduler: Any,
        client: Client,
        lease: Lease,
        schedule: str,
        timings: Timings,
        build: Callable[[], Any],
        remembered: Mapping[str, VersionedValue],
    ) -> None:
        now = client.transport.now
        self.step_down: StepDown | None = None
        self._scheduler = scheduler
        self._leader = own_leader_info(lease.owner, lease.fencing_token)
        self._name = schedule
        self._timings = timings
        self._build = build
        self._remembered = remembered
        self._lease = LeaderLease(client, lease, timings)
        self._context = LeaderContext(
            lease=self._lease,
            state=ScheduleState(
                Register(client, schedule),
                lease.fencing_token,
                pause=timings.retry,
                now=now,
                wall=lambda: scheduler.app.now().timestamp(),
            ),
            broker=Broker(scheduler.app, timings.broker_timeout, now),
            retry_queue=RetryQueue(timings.retry, now),
            missed_runs=MissedRuns(now),
            key_prefix=client.settings.key_prefix,
        )
        self._has_led = self._has_warned = False
        #: The wrapped scheduler; None before it is built.
        self.inner: Any = None
        self._has_announced = False
        self._close_steps = [
            self._write_state,
            self._close_schedule,
            self._release,
            self._context.broker.close,
            self._announce_stop,
        ]

    @property
    def records(self) -> Mapping[str, VersionedValue]:
        """The records of this leadership, or of the one before if it has read none."""
        return self._context.state.records() or self._remembered

    def tick(self) -> float:
        """Make one pass; return the seconds until the next. It may set `step_down`."""
        try:
            return self._pass()
        except StaleFencingToken as exc:
            self._lease.revoke()
            return self._end(f"another beat leads: {exc}")

    def close(self) -> None:
        """
        Hand over; write nothing if the lease was lost before.

        Idempotent. If a signal's exception cuts a step short, that step and all later ones run
        before the exception propagates.
        """
        while self._close_steps:
            try:
                self._close_steps[0]()
            except Exception:
                logger.exception(
                    "beat-hand-over-step-failed",
                    "A step of the hand-over failed; the beat continues with the next one",
                )
            except BaseException:
                self.close()
                raise
            self._close_steps.pop(0)

    def _pass(self) -> float:
        timings, context = self._timings, self._context
        self._lease.keep_extending()
        if not self._lease.is_valid:
            return self._end(f"its lease was lost: {self._lease.lost}")
        if context.state.is_in_future:
            return self._end("the clock was set back by more than a day")
        context.state.warn_if_clock_set_back()
        if self.inner is None and not self._start():
            return timings.retry
        context.state.write()
        if not self._lease.can_send():
            return timings.retry * RECHECK
        if not context.broker.is_connected:
            return self._connect()
        self._has_led = True
        delay: float = self.inner.tick()
        context.state.write()
        return min(delay, timings.retry)

    def _start(self) -> bool:
        """Read what earlier leaders recorded, build the scheduler; return whether it worked."""
        try:
            previous = self._context.state.claim(self._leader, self._remembered)
        except QuorumUnavailable as exc:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "beat-state-unread",
                    "This beat leads schedule %(schedule)r, and sends nothing until it has read "
                    "the records of earlier leaders: %(error)s It tries again in each pass",
                    schedule=self._name,
                    error=exc,
                )
            return False
        building_since = self._scheduler.app.now()
        inner = self._build()
        lead_with(inner, self._context, building_since=building_since)
        self.inner = inner
        self._announce_start("no beat led before" if previous is None else f"it follows {previous}")
        return True

    def _connect(self) -> float:
        """Connect to the broker; that may take all the time that a pass has."""
        broker = self._context.broker
        if broker.connect():
            return 0.0
        if broker.down_for > self._timings.ttl:
            return self._end(
                f"it could not reach the broker for {broker.down_for:.3g} s",
                back_off=self._timings.back_off,
            )
        return self._timings.retry * RECONNECT

    def _end(self, reason: str, back_off: float = 0.0) -> float:
        self.step_down = StepDown(reason=reason, back_off=back_off, has_led=self._has_led)
        return 0.0

    def _write_state(self) -> None:
        if self._lease.is_valid:
            try:
                self._context.state.write(at_once=True)
            except StaleFencingToken:
                self._lease.revoke()

    def _close_schedule(self) -> None:
        # Not twice: after a close that was cut short, nothing can be closed cleanly.
        inner, self.inner = self.inner, None
        if inner is not None:
            inner.close()

    def _release(self) -> None:
        self._lease.release()

    def _announce_start(self, reason: str) -> None:
        self._has_announced = True
        logger.info(
            "beat-leads",
            "Beat leads schedule %(schedule)r with fencing token %(token)d: %(reason)s. %(count)d "
            "entries are recorded",
            schedule=self._name,
            token=self._lease.token,
            reason=reason,
            count=len(self._context.state),
        )
        beat_leader_started.send(sender=self._scheduler, token=self._lease.token, reason=reason)

    def _announce_stop(self) -> None:
        reason = STOPPED if self.step_down is None else self.step_down.reason
        logger.log(
            logging.INFO if self.step_down is None else logging.WARNING,
            "beat-no-longer-leads",
            "Beat no longer leads schedule %(schedule)r: %(reason)s",
            schedule=self._name,
            reason=reason,
            token=self._lease.token,
        )
        if self._has_announced:
            self._has_announced = False
            token = self._lease.token
            beat_leader_stopped.send(sender=self._scheduler, token=token, reason=reason)
