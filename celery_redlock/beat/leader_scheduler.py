"""
The wrapped scheduler while its beat leads: it continues the schedule and sends each tick once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from celery.utils import uuid

from celery_redlock._log import event_logger
from celery_redlock.beat.broker import Broker, duplicate_in, is_broker_failure
from celery_redlock.beat.inner_scheduler import (
    catch_up,
    close_without_saving,
    mark_dirty,
    task_id_for,
    uncount_unsent,
)
from celery_redlock.beat.leader_lease import LeaderLease
from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.beat.unsent import MissedRuns, RetryQueue, missed_count
from celery_redlock.errors import StaleFencingToken
from celery_redlock.schedules.timeutils import SECOND, from_us, to_us
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.ticks.tick_pass import TickPass
from celery_redlock.tasks.ticks.tick_stamping import Send, TickScheduler

logger = event_logger(__name__)


class LeaderScheduler(TickScheduler):
    """
    A leader's scheduler: this class is a mixin before the wrapped scheduler's own.

    The scheduler continues from what the nodes have recorded, sends each tick once, writes nothing
    without the lease, and stores no run that was not sent.

    Attributes:
        redlock_lease: whether the leader may send and write.
        redlock_state: what is recorded on the nodes about the entries.
        redlock_broker: the connection that it sends through.
        redlock_retry_queue: the entries that it could not send yet.
        redlock_missed_runs: due times for which no send is recorded, for the log.
        redlock_key_prefix: the prefix of keys on the nodes; schedules of one name under different
            prefixes have different task ids.
        redlock_building_since: when the build of the scheduler began; None once it has read its
            entries.
        redlock_reserved: the entry that it has already counted as run and is about to send.
        redlock_is_sending: whether it is in the middle of a send or a pass.
        redlock_sync_is_due: whether Celery has asked for a sync in the meantime.
        redlock_loaded: the entries as it last read them.
    """

    redlock_lease: LeaderLease
    redlock_state: ScheduleState
    redlock_broker: Broker
    redlock_retry_queue: RetryQueue
    redlock_missed_runs: MissedRuns
    redlock_key_prefix: str
    redlock_building_since: datetime | None
    redlock_reserved: Any = None
    redlock_is_sending: bool = False
    redlock_sync_is_due: bool = False
    redlock_loaded: Any = None

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, one entry at most; return the seconds until the next pass."""
        self.redlock_missed_runs.report()
        _use_connection(self, self.redlock_broker.connection)
        entry = self.redlock_retry_queue.ready()
        if entry is not None:
            self.apply_entry(entry, producer=self.producer)
            return 0.0
        delay = super().tick(*args, **kwargs)
        self._redlock_forget_removed()
        return min(delay or 0.0, self.redlock_retry_queue.delay())

    def populate_heap(self, *args: Any, **kwargs: Any) -> Any:
        """Continue the entries from what is recorded, before the scheduler looks for due ones."""
        schedule = self.schedule
        self.redlock_state.note_schedule(schedule)
        for entry in list(schedule.values()):
            try:
                catch_up(entry, self.redlock_state, invented_since=self.redlock_building_since)
            except Exception:
                logger.exception(
                    "beat-entry-own-last-run",
                    "Entry %(entry)r continues from its own last run, not from the recorded one",
                    entry=entry.name,
                )
        self.redlock_building_since = None
        return super().populate_heap(*args, **kwargs)

    def reserve(self, entry: Any) -> Any:
        """Note which entry the scheduler counts as run from now on, and is about to send."""
        self.redlock_reserved = entry
        return super().reserve(entry)

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any
    ) -> Any:
        """Send an entry's task if this beat may send; else keep the entry, unless sent by hand."""
        send = partial(super().apply_async, entry, producer=producer, advance=advance, **kwargs)
        if not advance:
            return send()
        # Sent by hand (`advance`): this is no tick, so it is neither recorded nor kept.
        if not self.redlock_lease.can_send():
            return self.app.AsyncResult(uuid())
        with self._redlock_sending():
            return send()

    def sync(self) -> None:
        """Let the scheduler write what it remembers, if this beat leads."""
        # Celery asks for a sync at the end of a send, before it is known whether that worked.
        self.redlock_sync_is_due = self.redlock_is_sending
        if self.redlock_is_sending or not self.redlock_lease.is_valid:
            return
        try:
            with self._redlock_uncount():
                super().sync()
        finally:
            mark_dirty(self, [entry.name for entry in self.redlock_retry_queue.entries])

    def close(self) -> None:
        """Let the scheduler write what it remembers if this beat still leads, and close it."""
        self.redlock_missed_runs.report(at_once=True)
        for name in ("producer", "connection"):
            self.__dict__.pop(name, None)  # the leader closes it, once it has handed over
        if self.redlock_lease.is_valid:
            self._redlock_uncount()  # without undo: closing a schedule file writes it once more
            super().close()
        else:
            close_without_saving(self)

    def redlock_recorded(self, entry: Any) -> int | None:
        """Return the tick that a leader recorded last for an entry, in microseconds."""
        state = self.redlock_state.entry_state(entry.name)
        return None if state is None else state.due_us

    def _ensure_connected(self) -> Any:
        return self.redlock_broker.connection

    @contextmanager
    def redlock_pass(self, entry: Any) -> Iterator[TickPass]:
        """As in `TickScheduler`; the scheduler writes what it remembers after the pass."""
        with self._redlock_sending(), super().redlock_pass(entry) as sending:
            yield sending

    def redlock_message(self, entry: Any, send: Send) -> Any:
        """Send one message of a tick, unless a leader is known to have sent it."""
        with self.redlock_pass(entry) as sending:
            tick = sending.next_tick(entry)
            state = self.redlock_state.entry_state(sending.entry.name)
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
            options["task_id"] = task_id_for(self.redlock_key_prefix, tick)
        return options

    def redlock_note_sent(self, sending: TickPass, tick: Tick | None) -> None:
        """Note that a message was sent, for a later leader that may have to send the others."""
        super().redlock_note_sent(sending, tick)
        if tick is not None:
            self.redlock_state.record_part(sending.entry.name, tick)

    def redlock_end(self, sending: TickPass) -> None:
        """Record a tick that was sent with all its messages; else keep the entry."""
        super().redlock_end(sending)
        if sending.failure is not None:
            self._redlock_keep(sending.entry, sending.failure)
        elif sending.unsent:
            self.redlock_retry_queue.add(sending.entry, at_once=True)
        elif sending.tick is not None and self._redlock_is_over(sending.tick, sending.entry):
            self.redlock_retry_queue.discard(sending.entry.name)
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
        self.redlock_lease.keep_extending()
        failure = sending.failure
        if failure is not None and is_broker_failure(failure, self.redlock_broker.connection):
            return False  # this pass has waited for the broker once
        if sending.sent:
            try:
                self.redlock_state.write()
            except StaleFencingToken:
                self.redlock_lease.revoke()
        return self.redlock_lease.can_send()

    def _redlock_result(self, sending: TickPass, entry: Any, tick: Tick | None) -> Any:
        options = self.redlock_options(sending, entry, tick)
        task_id = options.get("task_id") or (entry.options or {}).get("task_id") or uuid()
        return self.app.AsyncResult(task_id)

    @contextmanager
    def _redlock_sending(self) -> Iterator[None]:
        """Let the scheduler write what it remembers when the block has ended, not within it."""
        if self.redlock_is_sending:
            yield
            return
        self.redlock_is_sending, self.redlock_sync_is_due = True, False
        try:
            yield
        except Exception:
            self._redlock_end_send()
            raise
        else:
            self._redlock_end_send()
        finally:
            self.redlock_is_sending = False

    def _redlock_end_send(self) -> None:
        self.redlock_is_sending = False
        self.redlock_reserved = None
        if self.redlock_sync_is_due:
            try:
                self.sync()
            except Exception:
                logger.exception(
                    "beat-runs-not-stored",
                    "The scheduler could not store its runs; it tries again with its next sync",
                )

    def _redlock_record(self, entry: Any, tick: Tick | None) -> None:
        """Note that an entry was sent; without a tick it counts from its last run, which is now."""
        try:
            if tick is not None:
                self._redlock_note_missed(entry, tick)
            self.redlock_retry_queue.discard(entry.name)
            due = to_us(entry.schedule.now()) / SECOND if tick is None else tick.due
            self.redlock_state.record_sent(entry.name, due)
        except Exception:
            logger.exception(
                "beat-send-not-recorded",
                "Entry %(entry)r was sent, but the send is not recorded",
                entry=entry.name,
            )

    def _redlock_note_missed(self, entry: Any, tick: Tick) -> None:
        state = self.redlock_state.entry_state(entry.name)
        if state is None or not state.count:
            return
        before = round(max(state.due, state.returned_at) * SECOND)
        count = missed_count(entry.schedule, before, tick.due_us)
        if count:
            self.redlock_missed_runs.note(entry.name, count, from_us(before), tick.due_at)

    def _redlock_keep(self, entry: Any, error: Exception) -> None:
        broker = self.redlock_broker
        failed = is_broker_failure(error, broker.connection)
        self.redlock_retry_queue.add(entry, at_once=failed)
        if failed:
            broker.drop()

    def _redlock_uncount(self) -> ExitStack:
        unsent = self.redlock_retry_queue.entries
        if self.redlock_reserved is not None:
            unsent.append(self.redlock_reserved)  # a signal has cut its sending short
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
        loaded = self.old_schedulers
        if loaded is not self.redlock_loaded and loaded is not None:
            self.redlock_loaded = loaded
            for name in self.redlock_retry_queue.keep_only(loaded):
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
