"""
One leadership of a beat, from the acquired lease to the hand-over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.beat.broker import Broker
from celery_redlock.beat.inner_scheduler import cancel_exit_write, close_without_saving
from celery_redlock.beat.leader_lease import LeaderLease, Timings
from celery_redlock.beat.leader_record import own_leader_info
from celery_redlock.beat.leader_scheduler import LeaderScheduler
from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.beat.unsent import MissedRuns, RetryQueue
from celery_redlock.core import Client, Lease, Register, VersionedValue
from celery_redlock.errors import ConfigurationError, QuorumUnavailable, StaleFencingToken
from celery_redlock.signals import beat_leader_started, beat_leader_stopped
from celery_redlock.tasks.ticks.entry_ticks import EntryTicks
from celery_redlock.tasks.ticks.tick_stamping import adopt

logger = event_logger(__name__)

STOPPED = "it was stopped"
#: Part of a retry period after which a leader that may not send checks its lease again.
RECHECK = 1 / 4
#: Part of a retry period after which a leader tries again to connect to the broker.
RECONNECT = 1 / 2


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

    Attributes:
        inner: the wrapped scheduler; None before it is built.
        ended: why it ends before its beat does, for the log and for the signal; None: it leads.
        back_off: seconds for which its beat is then no candidate, at least.
        has_led: whether its scheduler could send at all.
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
        self._now = now = client.transport.now
        self.inner: Any = None
        self.ended: str | None = None
        self.back_off = 0.0
        self.has_led = False
        self._scheduler = scheduler
        self._leader = own_leader_info(lease.owner, lease.fencing_token)
        self._name = schedule
        self._timings = timings
        self._build = build
        self._remembered = remembered
        self._lease = LeaderLease(client, lease, timings)
        self._state = ScheduleState(
            Register(client, schedule),
            lease.fencing_token,
            pause=timings.retry,
            now=now,
            wall=lambda: scheduler.app.now().timestamp(),
        )
        self._broker = Broker(scheduler.app, timings.broker_timeout, now)
        self._key_prefix = client.settings.key_prefix
        self._has_warned = self._has_announced = False
        self._close_steps = [
            self._write_state,
            self._close_schedule,
            self._release,
            self._broker.close,
            self._announce_stop,
        ]

    @property
    def records(self) -> Mapping[str, VersionedValue]:
        """The records of this leadership, or of the one before if it has read none."""
        return self._state.records() or self._remembered

    def tick(self) -> float:
        """Make one pass; return the seconds until the next. It may set `ended`."""
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
        timings = self._timings
        self._lease.keep_extending()
        if not self._lease.is_valid:
            return self._end(f"its lease was lost: {self._lease.lost}")
        if self._state.is_in_future:
            return self._end("the clock was set back by more than a day")
        self._state.warn_if_clock_set_back()
        if self.inner is None and not self._start():
            return timings.retry
        self._state.write()
        if not self._lease.can_send():
            return timings.retry * RECHECK
        if not self._broker.is_connected:
            return self._connect()
        self.has_led = True
        delay: float = self.inner.tick()
        self._state.write()
        return min(delay, timings.retry)

    def _start(self) -> bool:
        """Read what earlier leaders recorded, build the scheduler; return whether it worked."""
        try:
            previous = self._state.claim(self._leader, self._remembered)
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
        cancel_exit_write(inner)
        try:
            adopt(
                inner,
                LeaderScheduler,
                EntryTicks(inner.app, lambda entry: True, token=self._lease.token),
                redlock_lease=self._lease,
                redlock_state=self._state,
                redlock_broker=self._broker,
                redlock_retry_queue=RetryQueue(self._timings.retry, self._now),
                redlock_missed_runs=MissedRuns(self._now),
                redlock_key_prefix=self._key_prefix,
                redlock_building_since=building_since,
            )
        except ConfigurationError:
            close_without_saving(inner)
            raise
        self.inner = inner
        self._announce_start("no beat led before" if previous is None else f"it follows {previous}")
        return True

    def _connect(self) -> float:
        """Connect to the broker; that may take all the time that a pass has."""
        broker = self._broker
        if broker.connect():
            return 0.0
        if broker.down_for > self._timings.ttl:
            return self._end(
                f"it could not reach the broker for {broker.down_for:.3g} s",
                back_off=self._timings.back_off,
            )
        return self._timings.retry * RECONNECT

    def _end(self, reason: str, back_off: float = 0.0) -> float:
        self.ended, self.back_off = reason, back_off
        return 0.0

    def _write_state(self) -> None:
        if self._lease.is_valid:
            try:
                self._state.write(at_once=True)
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
            count=len(self._state),
        )
        beat_leader_started.send(sender=self._scheduler, token=self._lease.token, reason=reason)

    def _announce_stop(self) -> None:
        reason = self.ended or STOPPED
        logger.log(
            logging.INFO if self.ended is None else logging.WARNING,
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
