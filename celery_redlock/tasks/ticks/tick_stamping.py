"""
Schedulers whose messages carry their tick: the entry's name and due time, which Celery omits.

Several beats may run with any scheduler but this package's own: each tick's body still runs once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import MappingProxyType, new_class
from typing import Any

from celery.beat import BeatLazyFunc, Scheduler, event_t
from celery.result import EagerResult
from celery.schedules import schedstate
from celery.utils.imports import qualname

from celery_redlock._log import event_logger
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.border import AppLike, due_after, heap_of
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.message.duplicate_result import DuplicateResult
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.ticks.entry_ticks import EntryTicks
from celery_redlock.tasks.ticks.tick_context import connect_publishes, no_tick, sending_tick
from celery_redlock.tasks.ticks.tick_pass import TickPass

logger = event_logger(__name__)

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
#: Most entries that one log line lists.
MAX_NAMES = 20
#: Sends a copy of an entry, and returns the result.
Send = Callable[[Any], Any]


class TickScheduler(Scheduler):  # type: ignore[misc]  # Celery is untyped
    """
    A scheduler that stamps its messages with their ticks.

    `adopt` gives a scheduler a subclass of its own class that has this one in front of it, so each
    method here runs first and calls the scheduler's own with `super()`. Attributes that are
    not Celery's are named `redlock_*`, so that they do not clash with those of a scheduler class.
    """

    #: No second stamping: `stamp_stock_beat` leaves such a scheduler alone.
    stamps_ticks = True
    redlock_ticks: EntryTicks
    redlock_current: TickPass | None = None

    def populate_heap(self, *args: Any, **kwargs: Any) -> Any:
        """Align the entries to their grids before the scheduler asks when they are due."""
        try:
            self.redlock_ticks.load(self.schedule.values())
        except Exception:
            # The scheduler reads its entries itself next, and raises as it would.
            logger.debug(
                "schedule-entries-unreadable",
                "The entries of the schedule cannot be read",
                exc_info=True,
            )
        return super().populate_heap(*args, **kwargs)

    def reserve(self, entry: Any) -> Any:
        """Note when the scheduler reserves an entry, which counts to its next tick from then on."""
        reserved = super().reserve(entry)
        self.redlock_ticks.note_reserved(entry, reserved)
        return reserved

    def is_due(self, entry: Any) -> Any:
        """Answer as the scheduler does, but not for a tick that was sent, and not 10 ms early."""
        ticks = self.redlock_ticks
        if not ticks.stamps(entry):
            return super().is_due(entry)
        ticks.align(entry)
        due, delay = super().is_due(entry)
        pause = ticks.pause_for(entry, self.redlock_recorded(entry)) if due else None
        if pause is not None:
            return schedstate(is_due=False, next=_postpone(self, entry, pause))
        return schedstate(is_due=due, next=_undo_adjust(self, delay))

    def apply_entry(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        """Send all that the scheduler sends for an entry that is due: one tick, in parts."""
        with self.redlock_pass(entry) as sending:
            # A copy, because the scheduler may change it; later it is compared with the entry.
            own = entry if sending.tick is None else entry_copy(entry)
            return super().apply_entry(own, *args, **kwargs)

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any
    ) -> Any:
        """Send an entry's task with its tick; without one if it is sent by hand (`advance`)."""
        send = partial(super().apply_async, producer=producer, advance=advance, **kwargs)
        if advance:
            return send(entry)
        with self.redlock_pass(entry) as sending:
            begun = sending.begun
            result = self.redlock_send(sending, entry, sending.next_tick(entry), send)
            if sending.begun == begun:
                sending.begin(entry)  # the scheduler does not send by Celery's own method
            return result

    @contextmanager
    def redlock_pass(self, entry: Any) -> Iterator[TickPass]:
        """Join the pass of an entry; begin it if there is none, and end it with the block."""
        outer = self.redlock_current
        if outer is not None and outer.entry.name == entry.name:
            yield outer
            return
        sending = self.redlock_current = TickPass(entry, self.redlock_ticks.next_tick(entry))
        try:
            yield sending
        except Exception as error:
            sending.failure = sending.failure or error
            self.redlock_end(sending)
            raise
        else:
            self.redlock_end(sending)
        finally:
            self.redlock_current = outer

    def redlock_message(self, entry: Any, send: Send) -> Any:
        """Send one message; `LastScheduler` calls this for each."""
        with self.redlock_pass(entry) as sending:
            tick = sending.next_tick(entry)
            sending.begin(entry)
            return self.redlock_send(sending, entry, tick, send)

    def redlock_send(self, sending: TickPass, entry: Any, tick: Tick | None, send: Send) -> Any:
        """
        Send a message of a pass, or several if the scheduler sends more than one in one call.

        Args:
            sending: the pass.
            entry: what is sent.
            tick: what its message carries, if anything.
            send: sends a copy of the entry, and returns the result.
        """
        options, begun = self.redlock_options(sending, entry, tick), sending.begun
        if tick is None:
            result = send(entry_copy(entry, options) if options else entry)
            is_stamped = True
        else:
            owns_id = sending.owns_id(entry)
            sending.ids.update({options["task_id"]} if owns_id and "task_id" in options else ())
            with sending_tick(entry.task, tick, owns_id=owns_id) as pending:
                result = send(entry_copy(entry, options))
            is_stamped = pending.sent or isinstance(result, DuplicateResult | EagerResult)
        if sending.begun == begun:  # else `redlock_message` has noted each message
            self.redlock_note_sent(sending, tick)
            if not is_stamped:
                self.redlock_ticks.warn_once(entry, f"no message of {entry.task} was sent")
        return result

    def redlock_options(
        self, sending: TickPass, entry: Any, tick: Tick | None
    ) -> Mapping[str, Any]:
        """Return options of a message that override those of its entry."""
        return NO_OPTIONS

    def redlock_note_sent(self, sending: TickPass, tick: Tick | None) -> None:
        """Note that a message was sent."""
        sending.sent += 1

    def redlock_end(self, sending: TickPass) -> None:
        """Note that the scheduler has sent all messages of a pass."""
        if sending.sent and sending.tick is not None:
            self.redlock_ticks.note_sent(sending.entry, sending.tick)

    def redlock_recorded(self, entry: Any) -> int | None:
        """Return the tick that some beat sent last for an entry, in microseconds, if known."""
        return None


class LastScheduler(Scheduler):  # type: ignore[misc]  # Celery is untyped
    """
    The class that each message passes after the scheduler's own classes and before Celery's.

    A scheduler may call `apply_async` several times in one pass, with an entry that it has changed.
    """

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any
    ) -> Any:
        """Send a message of a pass with its part of the tick."""
        send = partial(super().apply_async, producer=producer, advance=advance, **kwargs)
        return send(entry) if advance else self.redlock_message(entry, send)


def stamped(
    scheduler_class: type, mixin: type[TickScheduler] = TickScheduler
) -> type[TickScheduler]:
    """
    Return a subclass of a scheduler class that has a mixin in front of it, under the same name.

    `LastScheduler` comes right before Celery's own class.

    Raises:
        ConfigurationError: the class is no scheduler of Celery's, or allows no such subclass.
    """
    name = qualname(scheduler_class)
    if not issubclass(scheduler_class, Scheduler):
        raise ConfigurationError(
            f"The scheduler {name} is not a subclass of celery.beat.Scheduler, so its messages "
            "cannot carry ticks. Derive it from that class."
        )
    attributes = ("__module__", "__qualname__", "__doc__")
    own = {attribute: getattr(scheduler_class, attribute) for attribute in attributes}
    own_class = () if scheduler_class is Scheduler else (scheduler_class,)
    try:
        # Not `type`: the class may have a metaclass.
        return new_class(
            scheduler_class.__name__,
            (mixin, *own_class, LastScheduler),
            exec_body=lambda namespace: namespace.update(own),
        )
    except Exception as exc:
        # Whatever its metaclass or `__init_subclass__` raises.
        raise ConfigurationError(
            f"The scheduler {name} does not allow a subclass ({type(exc).__name__}: {exc}), and "
            "only a subclass adds ticks to its messages. Choose another scheduler class, or have "
            "its metaclass or __init_subclass__ accept a plain subclass."
        ) from exc


def adopt(scheduler: Any, mixin: type[TickScheduler], ticks: EntryTicks, **attributes: Any) -> None:
    """
    Make a scheduler an instance of a `stamped` subclass of its class; only this instance changes.

    Args:
        scheduler: any scheduler derived from Celery's; it stays as it was if this raises.
        mixin: the class to put in front of its class.
        ticks: becomes its `redlock_ticks`.
        attributes: other attributes that the mixin needs.

    Raises:
        ConfigurationError: it sets an overridden method on the instance, or its class cannot be
            stamped.
    """
    own = type(scheduler)
    adopted = stamped(own, mixin)
    hidden = sorted(name for name in vars(scheduler) if name in _overridden(mixin))
    if hidden:
        raise ConfigurationError(
            f"The scheduler {qualname(own)} sets {', '.join(hidden)} on its instance, which hides "
            "the method of its subclass that stamps messages with their ticks. Define it in the "
            "class."
        )
    try:
        scheduler.__class__ = adopted
    except TypeError as exc:
        raise ConfigurationError(
            f"The scheduler {qualname(own)} cannot become an instance of a subclass ({exc}), and "
            "only a subclass adds ticks to its messages. Choose another scheduler class."
        ) from exc
    vars(scheduler).update(attributes, redlock_ticks=ticks)
    connect_publishes()


def stamp_stock_beat(sender: Any) -> None:
    """Have the scheduler of a beat that starts stamp its ticks. Never raises."""
    scheduler = sender.scheduler
    if getattr(scheduler, "stamps_ticks", False):
        return
    protected = cache(partial(is_protected, scheduler.app))
    try:
        ticks = EntryTicks(scheduler.app, lambda entry: protected(entry.task))
        adopt(scheduler, TickScheduler, ticks)
    except ConfigurationError as error:
        logger.error(  # noqa: TRY400  # a setting or a class is wrong, not the code here
            "beat-without-ticks",
            "This beat sends its messages without ticks, so a tick that several beats send runs "
            "several times: %(error)s",
            error=error,
        )
        return
    _announce(scheduler, ticks)


def is_protected(app: AppLike, task_name: str) -> bool:
    """
    Return whether a worker of this app would run each tick of a task's entries once.

    Raises:
        ConfigurationError: a setting is unknown or has an impossible value.
    """
    task = app.tasks.get(task_name)
    if task is None:
        return True  # a task that is not loaded here may well lock where it runs
    return read_settings(app).dedupe or getattr(task, "redlock_plan", None) is not None


def entry_copy(entry: Any, options: Mapping[str, Any] = NO_OPTIONS) -> Any:
    """
    Return a copy of an entry to be sent, so that the entry itself does not change.

    Args:
        entry: the entry; it is returned itself if it cannot be copied.
        options: these override the entry's own.
    """
    try:
        own = {**(entry.options or {}), **options}
        if isinstance(own.get("headers"), Mapping):
            # Celery writes into them.
            own["headers"] = dict(own["headers"])
        message = object.__new__(type(entry))
        vars(message).update(
            vars(entry),
            options=own,
            args=[_without_tick(value) for value in entry.args or ()],
            kwargs={name: _without_tick(value) for name, value in (entry.kwargs or {}).items()},
        )
    except Exception:
        logger.exception(
            "entry-not-stamped",
            "Entry %(entry)r is sent with only its own options",
            entry=entry.name,
        )
        return entry
    return message


class _WithoutTick(BeatLazyFunc):  # type: ignore[misc]  # Celery is untyped
    """A lazy argument of a message; a message that it sends while it is evaluated has no tick."""

    def delay(self) -> Any:
        """Evaluate it."""
        with no_tick():
            return super().delay()


def _without_tick(value: Any) -> Any:
    return _WithoutTick(value) if isinstance(value, BeatLazyFunc) else value


def _overridden(mixin: type) -> set[str]:
    """Return the names of the methods that a mixin puts in front of Celery's."""
    classes = mixin.__mro__[: mixin.__mro__.index(Scheduler)]
    return {name for cls in classes for name in vars(cls) if callable(getattr(Scheduler, name, 0))}


def _postpone(scheduler: Any, entry: Any, pause: float) -> float:
    """Move an entry back on the scheduler's heap; return how long the scheduler may sleep."""
    heap = heap_of(scheduler)
    if not heap or not isinstance(heap[0], event_t) or heap[0].entry is not entry:
        return pause
    # Older schedulers leave the entry on top, where it keeps all others from their turn.
    later = due_after(scheduler, entry, pause)
    heapq.heapreplace(heap, event_t(later, heap[0].priority, entry))
    return max(0.0, float(heap[0].time - due_after(scheduler, entry, 0.0)))


def _undo_adjust(scheduler: Any, delay: Any) -> Any:
    """
    Return a longer delay, which the scheduler's own `adjust` turns into the given one.

    `adjust` wakes the scheduler 10 ms early; it would find nothing due, and ask again without any
    sleep until the entry is due.
    """
    if not isinstance(delay, int | float) or not 0 < delay < float("inf"):
        return delay
    return delay + (delay - scheduler.adjust(delay))


def _announce(scheduler: Any, ticks: EntryTicks) -> None:
    try:
        entries = list(scheduler.schedule.values())
    except Exception:
        logger.warning(
            "schedule-unreadable",
            "The schedule cannot be read yet",
            exc_info=True,
        )
        return
    if not entries:
        return
    logger.info(
        "entries-with-ticks",
        "Ticks of these entries are identified by name and due time: %(entries)s. Ticks of these "
        "are not, because their tasks do not lock: %(unstamped_entries)s.",
        entries=_listed([entry.name for entry in entries if ticks.stamps(entry)]),
        unstamped_entries=_listed([entry.name for entry in entries if not ticks.stamps(entry)]),
    )


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return (
        ", ".join(sorted(names)[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "") or "none"
    )
