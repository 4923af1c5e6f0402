"""
The wrapped scheduler while its beat leads: it continues the schedule and sends each tick once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from celery.utils import uuid

from celery_redlock._log import event_logger
from celery_redlock.beat.broker import Broker, duplicate_in, is_broker_failure
from celery_redlock.beat.entries import catch_up, missed_count, task_id_for, uncount_unsent
from celery_redlock.beat.inner_scheduler import (
    cancel_exit_write,
    close_without_saving,
    mark_dirty,
)
from celery_redlock.beat.leader_lease import LeaderLease
from celery_redlock.beat.missed_runs import MissedRuns
from celery_redlock.beat.retry_queue import RetryQueue
from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.errors import ConfigurationError, StaleFencingToken
from celery_redlock.schedules.timeutils import SECOND, from_us, to_us
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.ticks.entry_ticks import EntryTicks
from celery_redlock.tasks.ticks.tick_pass import TickPass
from celery_redlock.tasks.ticks.tick_stamping import Send, TickScheduler, adopt

logger = event_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderContext:
    """
    The collaborators of a leader.

    Attributes:
        lease: whether it may send and write.
        state: what is recorded on the nodes about the entries.
        broker: the connection that it sends through.
        retry_queue: the entries that it could not send yet.
        missed_runs: due times for which no send is recorded, for the log.
        key_prefix: the prefix of keys on the nodes; schedules of one name under different prefixes
            have different task ids.
    """

    lease: LeaderLease
    state: ScheduleState
    broker: Broker
    retry_queue: RetryQueue
    missed_runs: MissedRuns
    key_prefix: str


@dataclass(slots=True)
class Progress:
    """
    How far a leader's scheduler has come.

    Attributes:
        building_since: when the build of the scheduler began; None once it has read its entries.
        reserved: the entry that the scheduler has already counted as run and is about to send.
        is_sending: whether the scheduler is in the middle of a send or a pass.
        sync_is_due: whether Celery has asked for a sync in the meantime.
        loaded: the entries as the scheduler last read them.
    """

    building_since: datetime | None
    reserved: Any = None
    is_sending: bool = False
    sync_is_due: bool = False
    loaded: Any = None


def lead_with(scheduler: Any, context: LeaderContext, *, building_since: datetime) -> None:
    """
    Restrict a scheduler that was just built to what a leader may send.

    Raises:
        ConfigurationError: a scheduler of this class cannot be changed like that.
    """
    cancel_exit_write(scheduler)
    try:
        adopt(
            scheduler,
            LeaderScheduler,
            EntryTicks(scheduler.app, lambda entry: True, token=context.lease.token),
            redlock_leader=context,
            redlock_progress=Progress(building_since),
        )
    except ConfigurationError:
        close_without_saving(scheduler)
        raise


class LeaderScheduler(TickScheduler):
    """
    A leader's scheduler: this class is a mixin before the wrapped scheduler's own.

    The scheduler continues from what the nodes have recorded, sends each tick once, writes nothing
    without the lease, and stores no run that was not sent.
    """

    redlock_leader: LeaderContext
    redlock_progress: Progress

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, one entry at most; return the seconds until the next pass."""
        leader = self.redlock_leader
        leader.missed_runs.report()
        _use_connection(self, leader.broker.connection)
        entry = leader.retry_queue.ready()
        if entry is not None:
            self.apply_entry(entry, producer=self.producer)
            return 0.0
        delay = super().tick(*args, **kwargs)
        self._redlock_forget_removed()
        return min(delay or 0.0, leader.retry_queue.delay())

    def populate_heap(self, *args: Any, **kwargs: Any) -> Any:
        """Continue the entries from what is recorded, before the scheduler looks for due ones."""
        leader, progress = self.redlock_leader, self.redlock_progress
        schedule = self.schedule
        leader.state.note_schedule(schedule)
        for entry in list(schedule.values()):
            try:
                catch_up(entry, leader.state, invented_since=progress.building_since)
            except Exception:
                logger.exception(
                    "beat-entry-own-last-run",
                    "Entry %(entry)r continues from its own last run, not from the recorded one",
                    entry=entry.name,
                )
        progress.building_since = None
        return super().populate_heap(*args, **kwargs)

    def reserve(self, entry: Any) -> Any:
        """Note which entry the scheduler counts as run from now on, and is about to send."""
        self.redlock_progress.reserved = entry
        return super().reserve(entry)

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any
    ) -> Any:
        """Send an entry's task if this beat may send; else keep the entry, unless sent by hand."""
        send = partial(super().apply_async, entry, producer=producer, advance=advance, **kwargs)
        if not advance:
            return send()
        # Sent by hand (`advance`): this is no tick, so it is neither recorded nor kept.
        if not self.redlock_leader.lease.can_send():
            return self.app.AsyncResult(uuid())
        with self._redlock_sending():
            return send()

    def sync(self) -> None:
        """Let the scheduler write what it remembers, if this beat leads."""
        leader, progress = self.redlock_leader, self.redlock_progress
        # Celery asks for a sync at the end of a send, before it is known whether that worked.
        progress.sync_is_due = progress.is_sending
        if progress.is_sending or not leader.lease.is_valid:
            return
        try:
            with self._redlock_uncount():
                super().sync()
        finally:
            mark_dirty(self, [entry.name for entry in leader.retry_queue.entries])

    def close(self) -> None:
        """Let the scheduler write what it remembers if this beat still leads, and close it."""
        leader = self.redlock_leader
        leader.missed_runs.report(at_once=True)
        for name in ("producer", "connection"):
            self.__dict__.pop(name, None)  # the leader closes it, once it has handed over
        if leader.lease.is_valid:
            self._redlock_uncount()  # without undo: closing a schedule file writes it once more
            super().close()
        else:
            close_without_saving(self)

    def redlock_recorded(self, entry: Any) -> int | None:
        """Return the tick that a leader recorded last for an entry, in microseconds."""
        state = self.redlock_leader.state.entry_state(entry.name)
        return None if state is None else state.due_us

    def _ensure_connected(self) -> Any:
        return self.redlock_leader.broker.connection

    @contextmanager
    def redlock_pass(self, entry: Any) -> Iterator[TickPass]:
        """As in `TickScheduler`; the scheduler writes what it remembers after the pass."""
        with self._redlock_sending(), super().redlock_pass(entry) as sending:
            yield sending

    def redlock_message(self, entry: Any, send: Send) -> Any:
        """Send one message of a tick, unless a leader is known to have sent it."""
        with self.redlock_pass(entry) as sending:
            tick = sending.next_tick(entry)
            state = self.redlock_leader.state.entry_state(sending.entry.name)
            if tick is None or state is None or not state.has_sent(tick):
                return super().redlock_message(entry, send)
            sending.begin(entry)
            return self._redlock_sent_before(sending, entry, tick)

    def redlock_send(self, sending: TickPass, entry: Any, tick: Tick | None, send: Send) -> Any:
        """Send a message if this beat may send, and no leader is known to have sent the tick."""
        if tick is not None and self._redlock_is_over(tick, sending.entry):
            return self._redlock_sent_before(sending, entry, tick)
        if not self._redlock_may_send(sending):
            sending.unsent = True
            return self._redlock_result(sending, entry, tick)
        try:
            return super().redlock_send(sending, entry, tick, send)
        except Exception as error:
            duplicate = duplicate_in(error)
            if duplicate is None:
                sending.failure = sending.failure or error
                raise
            logger.warning(
                "beat-entry-duplicate",
                "Entry %(entry)r was due, and counts as sent: %(error)s",
                entry=entry.name,
                error=duplicate,
            )
            self.redlock_note_sent(sending, tick)
            return duplicate.result or self.app.AsyncResult(duplicate.task_id or uuid())

    def redlock_options(
        self, sending: TickPass, entry: Any, tick: Tick | None
    ) -> Mapping[str, Any]:
        """Return the task id of a tick's message, and let a later pass try again, not kombu."""
        options: dict[str, Any] = {"retry": False}
        if tick is not None and sending.owns_id(entry):
            options["task_id"] = task_id_for(self.redlock_leader.key_prefix, tick)
        return options

    def redlock_note_sent(self, sending: TickPass, tick: Tick | None) -> None:
        """Note that a message was sent, for a later leader that may have to send the others."""
        super().redlock_note_sent(sending, tick)
        if tick is not None:
            self.redlock_leader.state.record_part(sending.entry.name, tick)

    def redlock_end(self, sending: TickPass) -> None:
        """Record a tick that was sent with all its messages; else keep the entry."""
        super().redlock_end(sending)
        if sending.failure is not None:
            self._redlock_keep(sending.entry, sending.failure)
        elif sending.unsent:
            self.redlock_leader.retry_queue.add(sending.entry, at_once=True)
        elif sending.tick is not None and self._redlock_is_over(sending.tick, sending.entry):
            self.redlock_leader.retry_queue.discard(sending.entry.name)
        else:
            self._redlock_record(sending.entry, sending.tick)

    def _redlock_is_over(self, tick: Tick, entry: Any) -> bool:
        recorded = self.redlock_recorded(entry)
        return recorded is not None and tick.due_us <= recorded

    def _redlock_sent_before(self, sending: TickPass, entry: Any, tick: Tick) -> Any:
        logger.debug(
            "beat-tick-sent-before",
            "The tick of %(entry)r at %(due)s was already sent",
            entry=entry.name,
            due=tick.due_at,
        )
        return self._redlock_result(sending, entry, tick)

    def _redlock_may_send(self, sending: TickPass) -> bool:
        """Record the pass's earlier messages; return whether this beat may send one more now."""
        leader = self.redlock_leader
        leader.lease.keep_extending()
        failure = sending.failure
        if failure is not None and is_broker_failure(failure, leader.broker.connection):
            return False  # this pass has waited for the broker once
        if sending.sent:
            try:
                leader.state.write()
            except StaleFencingToken:
                leader.lease.revoke()
        return leader.lease.can_send()

    def _redlock_result(self, sending: TickPass, entry: Any, tick: Tick | None) -> Any:
        options = self.redlock_options(sending, entry, tick)
        task_id = options.get("task_id") or (entry.options or {}).get("task_id") or uuid()
        return self.app.AsyncResult(task_id)

    @contextmanager
    def _redlock_sending(self) -> Iterator[None]:
        """Let the scheduler write what it remembers when the block has ended, not within it."""
        progress = self.redlock_progress
        if progress.is_sending:
            yield
            return
        progress.is_sending, progress.sync_is_due = True, False
        try:
            yield
        except Exception:
            self._redlock_end_send()
            raise
        else:
            self._redlock_end_send()
        finally:
            progress.is_sending = False

    def _redlock_end_send(self) -> None:
        self.redlock_progress.is_sending = False
        self.redlock_progress.reserved = None
        if self.redlock_progress.sync_is_due:
            try:
                self.sync()
            except Exception:
                logger.exception(
                    "beat-runs-not-stored",
                    "The scheduler could not store its runs; it tries again with its next sync",
                )

    def _redlock_record(self, entry: Any, tick: Tick | None) -> None:
        """Note that an entry was sent; without a tick it counts from its last run, which is now."""
        leader = self.redlock_leader
        try:
            if tick is not None:
                self._redlock_note_missed(entry, tick)
            leader.retry_queue.discard(entry.name)
            due = to_us(entry.schedule.now()) / SECOND if tick is None else tick.due
            leader.state.record_sent(entry.name, due)
        except Exception:
            logger.exception(
                "beat-send-not-recorded",
                "Entry %(entry)r was sent, but the send is not recorded",
                entry=entry.name,
            )

    def _redlock_note_missed(self, entry: Any, tick: Tick) -> None:
        leader = self.redlock_leader
        state = leader.state.entry_state(entry.name)
        if state is None or not state.count:
            return
        before = round(max(state.due, state.returned_at) * SECOND)
        count = missed_count(entry.schedule, before, tick.due_us)
        if count:
            leader.missed_runs.note(entry.name, count, from_us(before), tick.due_at)

    def _redlock_keep(self, entry: Any, error: Exception) -> None:
        broker = self.redlock_leader.broker
        failed = is_broker_failure(error, broker.connection)
        self.redlock_leader.retry_queue.add(entry, at_once=failed)
        if failed:
            broker.drop()

    def _redlock_uncount(self) -> ExitStack:
        unsent = self.redlock_leader.retry_queue.entries
        if self.redlock_progress.reserved is not None:
            unsent.append(self.redlock_progress.reserved)  # a signal has cut its sending short
        if not unsent:
            return ExitStack()
        try:
            return uncount_unsent(self.schedule, unsent)
        except Exception:
            logger.exception(
                "beat-unsent-runs-stored",
                "Runs that were not sent may be stored as sent",
            )
            return ExitStack()

    def _redlock_forget_removed(self) -> None:
        progress = self.redlock_progress
        loaded = self.old_schedulers
        if loaded is not progress.loaded and loaded is not None:
            progress.loaded = loaded
            for name in self.redlock_leader.retry_queue.keep_only(loaded):
                logger.warning(
                    "beat-unsent-tick-dropped",
                    "Entry %(entry)r has left the schedule; its tick that could not be sent is "
                    "dropped",
                    entry=name,
                )


def _use_connection(scheduler: Any, connection: Any) -> None:
    if vars(scheduler).get("connection") is not connection:
        scheduler.connection = connection
        vars(scheduler).pop("producer", None)
