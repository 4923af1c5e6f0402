"""
Leading: one leadership, from its lease to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery.utils.log import get_logger

from celery_redlock.beat.broker import Broker
from celery_redlock.beat.leader_lease import LeaderLease
from celery_redlock.beat.leader_record import own_leader_info
from celery_redlock.beat.leader_scheduler import LeaderContext, LeaderScheduler
from celery_redlock.beat.missed_runs import MissedRuns
from celery_redlock.beat.retry_queue import RetryQueue
from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.beat.timing import Timings
from celery_redlock.core import Lease, Redlock, Register
from celery_redlock.errors import QuorumUnavailable, StaleFencingToken
from celery_redlock.signals import beat_leader_started, beat_leader_stopped

__all__ = ["Leadership", "StepDown"]

logger = get_logger(__name__)

STOPPED = "it was stopped"
#: How often a leader that may not send looks whether it may again, in parts of a retry period.
RECHECK = 1 / 4
#: How often it tries to connect, likewise.
RECONNECT = 1 / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """
    Why a leadership ends before its beat does.

    Attributes:
        reason: for the log and for people.
        hold_back: how long this beat leaves the lead to others, in seconds.
    """

    reason: str
    back_off: float = 0.0


class Leadership:
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
        self.step_down: StepDown | None = None
        self._scheduler = scheduler
        self._leader = own_leader_info(lease.owner, lease.fencing_token)
        self._name = schedule
        self._timings = timings
        self._build = build
        self._leader_lease = LeaderLease(redlock, lease, timings)
        self._context = LeaderContext(
            leader_lease=self._leader_lease,
            schedule_state=ScheduleState(
                Register(redlock, schedule),
                lease.fencing_token,
                pause=timings.retry,
                now=now,
                wall=lambda: scheduler.app.now().timestamp(),
            ),
            broker=Broker(scheduler.app, timings.broker_timeout, now),
            retry_queue=RetryQueue(timings.retry, now),
            missed_runs=MissedRuns(now),
            schedule=schedule,
            key_prefix=redlock.settings.key_prefix,
        )
        self._has_warned = False
        self._leader_scheduler: LeaderScheduler | None = None
        self._has_announced = False
        self._close_steps = [
            self._write_state,
            self._close_schedule,
            self._release,
            self._context.broker.close,
            self._announce_stop,
        ]

    @property
    def inner(self) -> Any:
        """The wrapped scheduler; None before it is built."""
        return None if self._leader_scheduler is None else self._leader_scheduler.inner

    def tick(self) -> float:
        """Make one pass; return the seconds until the next. Afterwards `step_down` may be set."""
        try:
            return self._pass()
        except StaleFencingToken as exc:
            self._leader_lease.revoke()
            return self._end(f"another beat leads: {exc}")

    def close(self) -> None:
        """
        Hand over; write nothing if the lease was lost before.

        Idempotent. A step that an exception from a signal cuts short is done again, and so are the
        others, before the exception goes on.
        """
        while self._close_steps:
            try:
                self._close_steps[0]()
            except Exception:
                logger.exception("A beat that stops leading goes on to do so")
            except BaseException:
                self.close()
                raise
            self._close_steps.pop(0)

    def _pass(self) -> float:
        timings, context = self._timings, self._context
        self._leader_lease.keep_extending()
        if not self._leader_lease.is_valid:
            return self._end(f"its lease was lost: {self._leader_lease.lost}")
        if context.schedule_state.is_in_future:
            return self._end("the clock was set back by more than a day")
        context.schedule_state.warn_if_clock_set_back()
        if self._leader_scheduler is None and not self._start():
            return timings.retry
        context.schedule_state.write()
        if not self._leader_lease.can_send():
            return timings.retry * RECHECK
        if not context.broker.is_connected:
            return self._connect()
        delay = self._leader_scheduler.tick() if self._leader_scheduler is not None else 0.0
        context.schedule_state.write()
        return min(delay, timings.retry)

    def _start(self) -> bool:
        """Learn what earlier leaders did, and build the scheduler; tell whether it has worked."""
        try:
            previous = self._context.schedule_state.claim(self._leader)
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
        self._leader_scheduler = LeaderScheduler(
            self._build(), self._context, building_since=building_since
        )
        self._announce_start("nobody led before" if previous is None else f"it follows {previous}")
        return True

    def _connect(self) -> float:
        """Connect to the broker, which may take all the time that a pass has."""
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
        self.step_down = StepDown(reason=reason, back_off=back_off)
        return 0.0

    def _write_state(self) -> None:
        if self._leader_lease.is_valid:
            try:
                self._context.schedule_state.write(at_once=True)
            except StaleFencingToken:
                self._leader_lease.revoke()

    def _close_schedule(self) -> None:
        # Not twice: what was cut short is not in a state to be closed in order.
        leader_scheduler, self._leader_scheduler = self._leader_scheduler, None
        if leader_scheduler is not None:
            leader_scheduler.close()

    def _release(self) -> None:
        self._leader_lease.release()

    def _announce_start(self, reason: str) -> None:
        self._has_announced = True
        logger.info(
            "Beat leads schedule %r with fencing token %d: %s. %d entries are recorded",
            self._name,
            self._leader_lease.token,
            reason,
            len(self._context.schedule_state),
        )
        beat_leader_started.send(
            sender=self._scheduler, token=self._leader_lease.token, reason=reason
        )

    def _announce_stop(self) -> None:
        reason = STOPPED if self.step_down is None else self.step_down.reason
        say = logger.info if self.step_down is None else logger.warning
        say("Beat no longer leads schedule %r: %s", self._name, reason)
        if self._has_announced:
            self._has_announced = False
            token = self._leader_lease.token
            beat_leader_stopped.send(sender=self._scheduler, token=token, reason=reason)
