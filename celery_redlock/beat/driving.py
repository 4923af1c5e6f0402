"""
The wrapped scheduler while its beat leads: what it sends, and from where it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from celery.utils.log import get_logger

from celery_redlock.beat.entries import catch_up, collapsed, take_back, task_id_for
from celery_redlock.beat.mandate import Mandate
from celery_redlock.beat.missed import Missed
from celery_redlock.beat.publishing import Broker, duplicate_in, is_broker_failure
from celery_redlock.beat.records import Records
from celery_redlock.beat.unsent import Unsent
from celery_redlock.beat.wrapped import abandon, cancel_exit_write, store_again
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.schedules.moments import SECOND, from_us, to_us
from celery_redlock.tasks.schedules.stamping import install

__all__ = ["Driving", "Means"]

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """
    What a leader works with.

    Attributes:
        mandate: whether it may.
        records: what the nodes know of the entries.
        broker: the connection that it sends through.
        unsent: what it could not send yet.
        missed: what nobody is known to have sent, for the log.
        schedule: the schedule's name on the nodes.
        prefix: of the keys on the nodes, so that equal schedules of two sets have other task ids.
    """

    mandate: Mandate
    records: Records
    broker: Broker
    unsent: Unsent
    missed: Missed
    schedule: str
    prefix: str


class Driving:
    """
    A scheduler instance that sends only what a leader may send.

    The instance's own methods are replaced, as the stamping replaces others: `sync`, so that it
    writes nothing without the lease, and of no run that was not sent; `populate_heap`, so that its
    entries go on where the schedule has got to; `reserve` and `apply_async`, so that each tick is
    sent once and noted.

    Args:
        inner: the scheduler, just built.
        means: what the leader works with.
        building_since: when building it began.
    """

    def __init__(self, inner: Any, means: Means, *, building_since: datetime) -> None:
        self._inner = inner
        self._means = means
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
        inner, unsent = self._inner, self._means.unsent
        self._means.missed.say()
        self._use_connection()
        entry = unsent.ready()
        if entry is not None:
            inner.apply_entry(entry, producer=inner.producer)
            return 0.0
        delay = inner.tick()
        self._forget_removed()
        return min(delay or 0.0, unsent.delay())

    def sync(self) -> None:
        """Let the scheduler write what it remembers, if this beat leads."""
        # Celery asks for it at the end of a send, and whether that has worked is not known yet.
        self._is_to_sync = self._is_sending
        if self._is_sending or not self._means.mandate.holds:
            return
        undo = self._take_back()
        try:
            self._sync()
        finally:
            for step in reversed(undo):
                step()
            store_again(self._inner, [entry.name for entry in self._means.unsent.entries])

    def populate_heap(self, *args: Any, **kwargs: Any) -> Any:
        """Let the entries go on where the schedule has got to, and then be asked when they are."""
        schedule = self._inner.schedule
        self._means.records.forget_old(schedule)
        for entry in list(schedule.values()):
            try:
                catch_up(entry, self._means.records, made_up_since=self._made_up_since)
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
        if not self._means.mandate.may_send():
            if not advance:
                self._means.unsent.add(entry, at_once=True)
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
            self._means.records.sent(entry.name, to_us(entry.schedule.now()) / SECOND)
            self._means.unsent.discard(entry.name)
        self._end_send()
        return result

    def close(self) -> None:
        """Let the scheduler write what it remembers if this beat still leads, and close it."""
        self._means.missed.say(at_once=True)
        for name in ("producer", "connection"):
            vars(self._inner).pop(name, None)  # the leader closes it, and not before it hands over
        if self._means.mandate.holds:
            self._take_back()  # for good: a schedule file is written once more as it is closed
            self._inner.close()
        else:
            abandon(self._inner)

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
        unsent = self._means.unsent.entries
        if self._in_hand is not None:
            unsent.append(self._in_hand)  # a signal has cut its sending short
        if not unsent:
            return []
        try:
            return take_back(self._inner.schedule, unsent)
        except Exception:
            logger.exception("What was not sent may be stored as sent")
            return []

    def _connected(self) -> Any:
        return self._means.broker.connection

    def _use_connection(self) -> None:
        connection = self._means.broker.connection
        if vars(self._inner).get("connection") is not connection:
            self._inner.connection = connection
            vars(self._inner).pop("producer", None)

    def _reached(self, entry: Any) -> int | None:
        state = self._means.records.state(entry.name)
        return None if state is None else state.due_us

    def _decide(self, entry: Any, tick: Tick) -> Tick | None:
        self._is_settled = True
        reached = self._reached(entry)
        if reached is not None and tick.due_us <= reached:
            logger.debug("Tick of %r at %s was sent before", entry.name, tick.due_at)
            self._means.unsent.discard(entry.name)
            return None
        return replace(tick, schedule=self._means.schedule, token=self._means.mandate.token)

    def _options(self, entry: Any, tick: Tick | None) -> Mapping[str, Any]:
        # Once, because it is tried again in a later pass.
        options: dict[str, Any] = {"retry": False}
        if tick is not None and "task_id" not in (entry.options or {}):
            options["task_id"] = task_id_for(self._means.prefix, tick)
        return options

    def _note(self, entry: Any, tick: Tick, error: Exception | None) -> None:
        if error is not None and duplicate_in(error) is None:
            self._keep(entry, error)
            return
        self._note_missed(entry, tick)
        self._means.unsent.discard(entry.name)
        self._means.records.sent(entry.name, tick.due)

    def _keep(self, entry: Any, error: Exception) -> None:
        broker = self._means.broker
        failed = is_broker_failure(error, broker.connection)
        self._means.unsent.add(entry, at_once=failed)
        if failed:
            broker.drop()

    def _note_missed(self, entry: Any, tick: Tick) -> None:
        state = self._means.records.state(entry.name)
        if state is None or not state.count:
            return
        count = collapsed(entry.schedule, state.due, tick.due)
        if count:
            self._means.missed.note(entry.name, count, from_us(state.due_us), tick.due_at)

    def _forget_removed(self) -> None:
        loaded = self._inner.old_schedulers
        if loaded is not self._loaded and loaded is not None:
            self._loaded = loaded
            for name in self._means.unsent.keep_only(loaded):
                logger.warning(
                    "Entry %r has left the schedule; a tick of it that could not be sent is "
                    "dropped",
                    name,
                )
