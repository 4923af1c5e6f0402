"""
Schedulers whose messages carry their tick: the entry's name and due time, which Celery omits.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from types import MappingProxyType, new_class
from typing import Any

from celery.beat import BeatLazyFunc, Scheduler, event_t
from celery.result import EagerResult
from celery.schedules import schedstate
from celery.utils.imports import qualname

from celery_redlock._log import event_logger
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.message.duplicate_result import DuplicateResult
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.ticks.entry_ticks import EntryTicks
from celery_redlock.tasks.ticks.tick_context import connect_publishes, no_tick, sending_tick

__all__ = ["TickScheduler", "adopt", "stamped"]

logger = event_logger(__name__)

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class TickScheduler(Scheduler):  # type: ignore[misc]  # Celery is untyped
    """
    A scheduler that stamps its messages with their ticks.

    `adopt` gives a scheduler a subclass of its own class that has this one in front of it, so each
    method here runs first and calls the scheduler's own with `super()`. Attributes that are
    not Celery's are named `redlock_*`, to stay apart from those of any scheduler class.
    """

    #: No second stamping: `stamp_stock_beat` leaves such a scheduler alone.
    stamps_ticks = True
    redlock_ticks: EntryTicks

    def populate_heap(self, *args: Any, **kwargs: Any) -> Any:
        """Put the entries on their grids before the scheduler asks when they are due."""
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
        """Answer as the scheduler does, except for ticks that were sent, and without haste."""
        ticks = self.redlock_ticks
        if not ticks.stamps(entry):
            return super().is_due(entry)
        ticks.align(entry)
        due, delay = super().is_due(entry)
        pause = ticks.pause_for(entry, self.redlock_recorded(entry)) if due else None
        if pause is not None:
            return schedstate(is_due=False, next=_postpone(self, entry, pause))
        return schedstate(is_due=due, next=_undo_adjust(self, delay))

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any
    ) -> Any:
        """Send an entry's task with its tick; without one if it is sent by hand (`advance`)."""
        if advance:
            return super().apply_async(entry, producer=producer, advance=True, **kwargs)
        tick = self.redlock_ticks.next_tick(entry)
        return self.redlock_send(entry, tick, producer=producer, **kwargs)

    def redlock_recorded(self, entry: Any) -> int | None:
        """Return the tick that some beat sent last for an entry, in microseconds, if known."""
        return None

    def redlock_send(
        self,
        entry: Any,
        tick: Tick | None,
        options: Mapping[str, Any] = NO_OPTIONS,
        **kwargs: Any,
    ) -> Any:
        """
        Send the task of a reserved entry.

        Args:
            entry: the entry.
            tick: what its message carries, if anything.
            options: these go before the entry's own.
            kwargs: as the scheduler's `apply_async` takes them.
        """
        message = _message_of(entry, tick, options)
        if tick is None:
            return super().apply_async(message, advance=False, **kwargs)
        owns_id = "task_id" not in (entry.options or {})
        with sending_tick(entry.task, tick, owns_id=owns_id) as pending:
            result = super().apply_async(message, advance=False, **kwargs)
        if not (pending.sent or isinstance(result, DuplicateResult | EagerResult)):
            self.redlock_ticks.warn_once(entry, f"no message of {entry.task} was sent")
        self.redlock_ticks.note_sent(entry, tick)
        return result


def stamped(
    scheduler_class: type, mixin: type[TickScheduler] = TickScheduler
) -> type[TickScheduler]:
    """
    Return a subclass of a scheduler class that has a mixin in front of it, under the same name.

    Raises:
        ConfigurationError: the class is no scheduler of Celery's, or allows no such subclass.
    """
    name = qualname(scheduler_class)
    if not issubclass(scheduler_class, Scheduler):
        raise ConfigurationError(
            f"The scheduler {name} is no subclass of celery.beat.Scheduler, so its messages cannot "
            "carry ticks. Derive it from that class."
        )
    attributes = ("__module__", "__qualname__", "__doc__")
    own = {attribute: getattr(scheduler_class, attribute) for attribute in attributes}
    try:
        # Not `type`: the class may have a metaclass.
        return new_class(
            scheduler_class.__name__,
            (mixin, scheduler_class),
            exec_body=lambda namespace: namespace.update(own),
        )
    except Exception as exc:
        # Whatever its metaclass or `__init_subclass__` raises.
        raise ConfigurationError(
            f"The scheduler {name} allows no subclass ({type(exc).__name__}: {exc}), and its "
            "messages carry ticks only through one. Choose another scheduler class, or have its "
            "metaclass or __init_subclass__ accept a plain subclass."
        ) from exc


def adopt(scheduler: Any, mixin: type[TickScheduler], ticks: EntryTicks, **attributes: Any) -> None:
    """
    Make a scheduler one of a `stamped` subclass of its class; only this instance changes.

    Args:
        scheduler: any scheduler derived from Celery's; it stays as it was if this raises.
        mixin: what goes in front of its class.
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
            f"The scheduler {qualname(own)} cannot become one of a subclass ({exc}), and its "
            "messages carry ticks only as such. Choose another scheduler class."
        ) from exc
    vars(scheduler).update(attributes, redlock_ticks=ticks)
    connect_publishes()


def _overridden(mixin: type) -> set[str]:
    """Return the names of the methods that a mixin puts in front of Celery's."""
    classes = mixin.__mro__[: mixin.__mro__.index(Scheduler)]
    return {name for cls in classes for name in vars(cls) if callable(getattr(Scheduler, name, 0))}


def _message_of(entry: Any, tick: Tick | None, options: Mapping[str, Any]) -> Any:
    """Return a copy of an entry to be sent, so that the entry itself keeps its own options."""
    if tick is None and not options:
        return entry
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
            "Entry %(entry)r is sent with its own options alone",
            entry=entry.name,
        )
        return entry
    return message


class _WithoutTick(BeatLazyFunc):  # type: ignore[misc]  # Celery is untyped
    """An argument that is evaluated as the message is made; what it sends itself is no tick."""

    def delay(self) -> Any:
        """Evaluate it."""
        with no_tick():
            return super().delay()


def _without_tick(value: Any) -> Any:
    return _WithoutTick(value) if isinstance(value, BeatLazyFunc) else value


def _postpone(scheduler: Any, entry: Any, pause: float) -> float:
    """Move an entry back on the scheduler's heap; return how long the scheduler may sleep."""
    heap = getattr(scheduler, "_heap", None)
    if not heap or not isinstance(heap[0], event_t) or heap[0].entry is not entry:
        return pause
    # Older schedulers leave it on top, where it keeps all others from their turn.
    when = scheduler._when
    heapq.heapreplace(heap, event_t(when(entry, pause), heap[0].priority, entry))
    return max(0.0, float(heap[0].time - when(entry, 0)))


def _undo_adjust(scheduler: Any, delay: Any) -> Any:
    """
    Return a longer delay, which the scheduler's own `adjust` turns into the given one.

    `adjust` wakes the scheduler 10 ms early; it would find that nothing is due, and not sleep at
    all until it is.
    """
    if not isinstance(delay, int | float) or not 0 < delay < float("inf"):
        return delay
    return delay + (delay - scheduler.adjust(delay))
