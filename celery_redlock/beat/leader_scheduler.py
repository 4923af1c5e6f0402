"""
The wrapped scheduler while its beat leads: what it sends, and from where it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from celery.utils.log import get_logger

from celery_redlock.beat.broker import Broker, duplicate_in, is_broker_failure
from celery_redlock.beat.entries import catch_up, missed_count, task_id_for, uncount_unsent
from celery_redlock.beat.inner_scheduler import cancel_exit_write, close_without_saving, mark_dirty
from celery_redlock.beat.leader_lease import LeaderLease
from celery_redlock.beat.missed_runs import MissedRuns
from celery_redlock.beat.retry_queue import RetryQueue
from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.schedules.timeutils import SECOND, from_us, to_us
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.ticks.tick_stamping import install

__all__ = ["LeaderContext", "LeaderScheduler"]

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderContext:
    """
    What a leader works with.

    Attributes:
        leader_lease: whether it may.
        schedule_state: what the nodes know of the entries.
        broker: the connection that it sends through.
        retry_queue: what it could not send yet.
        missed_runs: what nobody is known to have sent, for the log.
        schedule: the schedule's name on the nodes.
        key_prefix: of the keys on the nodes, equal schedules of two sets differ in their task ids.
    """

    leader_lease: LeaderLease
    schedule_state: ScheduleState
    broker: Broker
    retry_queue: RetryQueue
    missed_runs: MissedRuns
    schedule: str
    key_prefix: str


class LeaderScheduler:
    """
    A scheduler instance that sends only what a leader may send.

    The instance's own methods are replaced, as the stamping replaces others: `sync`, so that it
    writes nothing without the lease, and of no run that was not sent; `populate_heap`, so that its
    entries go on where the schedule has got to; `reserve` and `apply_async`, so that each tick is
    sent once and noted.

    Args:
        inner: the scheduler, just built.
        context: what the leader works with.
        building_since: when building it began.
    """

    def __init__(self, inner: Any, context: LeaderContext, *, building_since: datetime) -> None:
        self._inner = inner
        self._context = context
        self._made_up_since: datetime | None = building_since
        self._is_settled = False
        self._loaded: Any = None
        self._in_hand: Any = None
        self._is_sending = False
        self._is_to_sync = False
        cancel_exit_write(inner)
        self._sync, inner.sync = inner.sync, self.sync
        self._populate_heap, inner.populate_heap = inner.populate_heap, self.populate_heap
        inner._ensure_connected = self._connected
        install(
            inner,
            protect=lambda entry: True,
            decorate=self._decide,
            options=self._options,
            sent=self._note,
            reached=self._reached,
        )
        self._reserve, inner.reserve = inner.reserve, self.reserve
        self._apply_async, inner.apply_async = inner.apply_async, self.apply_async

    @property
    def inner(self) -> Any:
        """The scheduler."""
        return self._inner

    def tick(self) -> float:
        """Send what is due, one entry at most; return the seconds until the next pass."""
        inner, retry_queue = self._inner, self._context.retry_queue
        self._context.missed_runs.report()
        self._use_connection()
        entry = retry_queue.ready()
        if entry is not None:
            inner.apply_entry(entry, producer=inner.producer)
            return 0.0
        delay = inner.tick()
        self._forget_removed()
        return min(delay or 0.0, retry_queue.delay())

    def sync(self) -> None:
        """Let the scheduler write what it remembers, if this beat leads."""
        # Celery asks for it at the end of a send, and whether that has worked is not known yet.
        self._is_to_sync = self._is_sending
        if self._is_sending or not self._context.leader_lease.is_valid:
            return
        undo = self._take_back()
        try:
            self._sync()
        finally:
            for step in reversed(undo):
                step()
            mark_dirty(self._inner, [entry.name for entry in self._context.retry_queue.entries])

    def populate_heap(self, *args: Any, **kwargs: Any) -> Any:
        """Let the entries go on where the schedule has got to, and then be asked when they are."""
        schedule = self._inner.schedule
        self._context.schedule_state.forget_removed(schedule)
        for entry in list(schedule.values()):
            try:
                catch_up(entry, self._context.schedule_state, made_up_since=self._made_up_since)
            except Exception:
                logger.exception("Entry %r goes on from its own last run", entry.name)
        self._made_up_since = None
        return self._populate_heap(*args, **kwargs)

    def reserve(self, entry: Any) -> Any:
        """Note which entry the scheduler counts as run from now on, and is about to send."""
        self._in_hand = entry
        return self._reserve(entry)

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any
    ) -> Any:
        """Send an entry's task, if this beat may send; else keep it until it may."""
        if not self._context.leader_lease.can_send():
            if not advance:
                self._context.retry_queue.add(entry, at_once=True)
            self._in_hand = None
            return None
        self._is_settled = advance  # what is sent by hand is no tick, and is not noted
        try:
            result = self._send(entry, producer=producer, advance=advance, **kwargs)
        except Exception as error:
            duplicate = None if advance else duplicate_in(error)
            if duplicate is None:
                if not self._is_settled:
                    self._keep(entry, error)
                self._end_send()
                raise
            logger.warning("Entry %r was due, and counts as run: %s", entry.name, duplicate)
            result = duplicate.result
        if not self._is_settled:
            # It counts from its last run, which is now.
            self._context.schedule_state.record_sent(
                entry.name, to_us(entry.schedule.now()) / SECOND
            )
            self._context.retry_queue.discard(entry.name)
        self._end_send()
        return result

    def close(self) -> None:
        """Let the scheduler write what it remembers if this beat still leads, and close it."""
        self._context.missed_runs.report(at_once=True)
        for name in ("producer", "connection"):
            vars(self._inner).pop(name, None)  # the leader closes it, and not before it hands over
        if self._context.leader_lease.is_valid:
            self._take_back()  # for good: a schedule file is written once more as it is closed
            self._inner.close()
        else:
            close_without_saving(self._inner)

    def _send(self, entry: Any, **kwargs: Any) -> Any:
        self._is_sending, self._is_to_sync = True, False
        try:
            return self._apply_async(entry, **kwargs)
        finally:
            self._is_sending = False

    def _end_send(self) -> None:
        self._in_hand = None
        if self._is_to_sync:
            self.sync()

    def _take_back(self) -> list[Callable[[], None]]:
        retry_queue = self._context.retry_queue.entries
        if self._in_hand is not None:
            retry_queue.append(self._in_hand)  # a signal has cut its sending short
        if not retry_queue:
            return []
        try:
            return uncount_unsent(self._inner.schedule, retry_queue)
        except Exception:
            logger.exception("What was not sent may be stored as sent")
            return []

    def _connected(self) -> Any:
        return self._context.broker.connection

    def _use_connection(self) -> None:
        connection = self._context.broker.connection
        if vars(self._inner).get("connection") is not connection:
            self._inner.connection = connection
            vars(self._inner).pop("producer", None)

    def _reached(self, entry: Any) -> int | None:
        state = self._context.schedule_state.entry_state(entry.name)
        return None if state is None else state.due_us

    def _decide(self, entry: Any, tick: Tick) -> Tick | None:
        self._is_settled = True
        reached = self._reached(entry)
        if reached is not None and tick.due_us <= reached:
            logger.debug("Tick of %r at %s was sent before", entry.name, tick.due_at)
            self._context.retry_queue.discard(entry.name)
            return None
        return replace(
            tick, schedule=self._context.schedule, token=self._context.leader_lease.token
        )

    def _options(self, entry: Any, tick: Tick | None) -> Mapping[str, Any]:
        # Once, because it is tried again in a later pass.
        options: dict[str, Any] = {"retry": False}
        if tick is not None and "task_id" not in (entry.options or {}):
            options["task_id"] = task_id_for(self._context.key_prefix, tick)
        return options

    def _note(self, entry: Any, tick: Tick, error: Exception | None) -> None:
        if error is not None and duplicate_in(error) is None:
            self._keep(entry, error)
            return
        self._note_missed(entry, tick)
        self._context.retry_queue.discard(entry.name)
        self._context.schedule_state.record_sent(entry.name, tick.due)

    def _keep(self, entry: Any, error: Exception) -> None:
        broker = self._context.broker
        failed = is_broker_failure(error, broker.connection)
        self._context.retry_queue.add(entry, at_once=failed)
        if failed:
            broker.drop()

    def _note_missed(self, entry: Any, tick: Tick) -> None:
        state = self._context.schedule_state.entry_state(entry.name)
        if state is None or not state.count:
            return
        count = missed_count(entry.schedule, state.due, tick.due)
        if count:
            self._context.missed_runs.note(entry.name, count, from_us(state.due_us), tick.due_at)

    def _forget_removed(self) -> None:
        loaded = self._inner.old_schedulers
        if loaded is not self._loaded and loaded is not None:
            self._loaded = loaded
            for name in self._context.retry_queue.keep_only(loaded):
                logger.warning(
                    "Entry %r has left the schedule; a tick of it that could not be sent is "
                    "dropped",
                    name,
                )
