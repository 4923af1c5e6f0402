"""
Telling the workers which tick of which entry a beat's message is for.

Celery puts neither the entry's name nor its due time into a message. This adds both, on the
instance of any scheduler, and has the intervals of its entries fall due on a grid.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from celery.beat import event_t
from celery.result import EagerResult
from celery.schedules import schedstate
from celery.utils.log import get_logger

from celery_redlock.schedules.due_times import due_times, latest_due, next_due, ran_already
from celery_redlock.schedules.interval import on_grid
from celery_redlock.schedules.timeutils import SECOND, to_us
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.message.duplicate_result import DuplicateResult
from celery_redlock.tasks.message.tick import LONGEST_INTERVAL, Tick
from celery_redlock.tasks.ticks.entry_message import message_of
from celery_redlock.tasks.ticks.names import has_own_name, schedule_name
from celery_redlock.tasks.ticks.tick_context import connect_publishes, sending_tick

__all__ = ["Stamper", "install", "is_protected"]

logger = get_logger(__name__)

#: How soon a schedule is asked again that says it is due for a tick that was sent, in seconds.
PAUSE = 1.0
UNNAMED = (
    "Entry %r of the schedule has no name of its own. Its ticks go by the text of its call: with "
    "other arguments it is another entry, and beats that see another text do not agree. Give it "
    "a name: add_periodic_task(..., name='...')."
)
UNSTAMPED = (
    "Entry %r of the schedule is sent without its tick, so that a worker cannot drop what another "
    "beat sends for the same moment: %s."
)

Decorate = Callable[[Any, Tick], Tick | None]
Options = Callable[[Any, Tick | None], Mapping[str, Any]]
Sent = Callable[[Any, Tick, Exception | None], None]
Reached = Callable[[Any], int | None]


def is_protected(app: Any, task_name: str) -> bool:
    """
    Tell whether a worker of this app would run each tick of a task's entries once.

    Raises:
        ConfigurationError: a setting is unknown or has an impossible value.
    """
    settings = read_settings(app)
    if settings.dedupe:
        return True
    task = app.tasks.get(task_name)
    if task is not None:
        return getattr(task, "redlock_plan", None) is not None
    return bool(settings.options_for(task_name))


def install(
    scheduler: Any,
    *,
    protect: Callable[[Any], bool],
    decorate: Decorate | None = None,
    options: Options | None = None,
    sent: Sent | None = None,
    reached: Reached | None = None,
) -> Stamper:
    """
    Have a scheduler stamp its messages; only this instance is changed.

    What it is given may raise: the beat goes on, says so once for each entry, and sends the message
    as Celery would have.

    Args:
        scheduler: any scheduler, of Celery or derived from its `Scheduler`.
        protect: tells for an entry whether its ticks are stamped; the others stay untouched.
        decorate: gets an entry and its tick before it is sent, and returns the tick to send, or
            None to send nothing.
        options: returns further options for an entry's `apply_async`; they go before its own. It
            is asked for each entry that is sent, also without a tick, except by hand.
        sent: is told what was sent, and the error if it was not.
        reached: tells for an entry which tick has been sent, in microseconds since the epoch, also
            if that is ahead of this clock. The entry is put off until a later one is due, and does
            not count as run for an earlier one.
    """
    stamper = Stamper(
        scheduler,
        protect=protect,
        decorate=decorate,
        options=options,
        sent=sent,
        reached=reached,
    )
    stamper.take_over()
    return stamper


class Stamper:
    """
    What stands between a scheduler and its entries.

    A tick is the latest due time that has come when the scheduler takes its entry: that is what it
    counts from next, so that a tick that comes in the meantime is neither lost nor sent twice.
    """

    def __init__(
        self,
        scheduler: Any,
        *,
        protect: Callable[[Any], bool],
        decorate: Decorate | None = None,
        options: Options | None = None,
        sent: Sent | None = None,
        reached: Reached | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._protect = protect
        self._decorate = decorate
        self._options = options
        self._sent = sent
        self._reached = reached
        self._schedule = schedule_name(scheduler.app)
        self._populate_heap = scheduler.populate_heap
        self._reserve = scheduler.reserve
        self._is_due = scheduler.is_due
        self._apply_async = scheduler.apply_async
        self._known: dict[tuple[str, str], bool] = {}
        self._taken_at: dict[str, datetime | None] = {}
        self._last_sent: dict[str, int] = {}
        self._warned: set[str] = set()

    def take_over(self) -> None:
        """Put these methods in the place of the scheduler's own."""
        connect_publishes()
        scheduler = self.scheduler
        scheduler.populate_heap = self.populate_heap
        scheduler.reserve = self.reserve
        scheduler.is_due = self.is_due
        scheduler.apply_async = self.apply_async
        scheduler.stamps_ticks = True

    def stamps(self, entry: Any) -> bool:
        """Tell whether an entry's ticks are stamped; it is asked once."""
        key = entry.name, entry.task
        if key not in self._known:
            self._known[key] = self._wanted(entry)
        return self._known[key]

    def populate_heap(self, *args: Any, **kwargs: Any) -> Any:
        """Put the entries on their grids before the scheduler asks when they are due."""
        try:
            entries = list(self.scheduler.schedule.values())
            self._forget_all_but({entry.name for entry in entries})
            for entry in entries:
                self._align(entry)
        except Exception:
            # The scheduler asks for its entries itself next, and fails as it would.
            logger.debug("The entries of the schedule cannot be read", exc_info=True)
        return self._populate_heap(*args, **kwargs)

    def reserve(self, entry: Any) -> Any:
        """Note when the scheduler takes an entry: from then on it counts to the next tick."""
        taken = self._reserve(entry)
        if self.stamps(entry):
            # Some schedulers make it anew, with the schedule that they have stored.
            self._align(taken)
            self._taken_at[entry.name] = getattr(taken, "last_run_at", None)
        return taken

    def is_due(self, entry: Any) -> Any:
        """Answer as the scheduler does, but for ticks that were sent, and without haste."""
        if not self.stamps(entry):
            return self._is_due(entry)
        self._align(entry)
        due, delay = self._is_due(entry)
        pause = self._pause_for(entry) if due else None
        if pause is not None:
            return schedstate(is_due=False, next=self._postpone(entry, pause))
        return schedstate(is_due=due, next=self._undo_adjust(delay))

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any
    ) -> Any:
        """Send an entry's task with its tick; one that is sent by hand (`advance`) has none."""
        tick = None if advance else self._tick_of(entry)
        if tick is None:
            message = entry if advance else self._message_of(entry, None)
            return self._apply_async(message, producer=producer, advance=advance, **kwargs)
        tick = self._decorated(entry, tick)
        if tick is None:
            return None
        message = self._message_of(entry, tick)
        try:
            with sending_tick(entry.task, tick, owns_id=_has_no_id(entry)) as pending:
                result = self._apply_async(message, producer=producer, advance=False, **kwargs)
        except Exception as error:
            self._note(entry, tick, error)
            raise
        if not (pending.sent or isinstance(result, DuplicateResult | EagerResult)):
            self._warn_once(entry, f"no message of {entry.task} was seen to be sent")
        self._last_sent[entry.name] = tick.due_us
        self._note(entry, tick, None)
        return result

    def _forget_all_but(self, names: set[Any]) -> None:
        # Entries may be made for one run each.
        self._known = {key: known for key, known in self._known.items() if key[0] in names}
        self._taken_at = {name: at for name, at in self._taken_at.items() if name in names}
        self._last_sent = {name: due for name, due in self._last_sent.items() if name in names}
        self._warned &= names

    def _wanted(self, entry: Any) -> bool:
        try:
            wanted = bool(self._protect(entry))
            named = not wanted or has_own_name(self.scheduler.app, entry)
        except Exception as error:
            self._warn_once(entry, f"whether it is to be told apart is unknown ({error!r})")
            return False
        if not named:
            logger.warning(UNNAMED, entry.name)
        return wanted

    def _align(self, entry: Any) -> None:
        if not self.stamps(entry):
            return
        try:
            aligned = on_grid(entry.schedule)
            if aligned is not None:
                entry.schedule = aligned
        except Exception as error:
            self._warn_once(entry, f"its schedule {entry.schedule!r} has no grid ({error!r})")

    def _tick_of(self, entry: Any) -> Tick | None:
        taken_at = self._taken_at.pop(entry.name, None)
        if not self.stamps(entry):
            return None
        try:
            now = taken_at or entry.schedule.now()
            due = latest_due(entry.schedule, entry.last_run_at, now)
            until = None if due is None else next_due(entry.schedule, due)
        except Exception as error:
            self._warn_once(entry, f"its schedule {entry.schedule!r} fails ({error!r})")
            return None
        if due is None:
            reason = f"its schedule {entry.schedule!r} counts from its last run"
            self._warn_once(entry, reason)
            return None
        if until is not None:
            until = min(until, due + LONGEST_INTERVAL)
        return Tick(entry=str(entry.name), due=due, schedule=self._schedule, until=until)

    def _pause_for(self, entry: Any) -> float | None:
        """Return in how many seconds to ask an entry again that has run for its last due time."""
        try:
            now = entry.schedule.now()
            due = latest_due(entry.schedule, entry.last_run_at, now)
            if due is not None:
                if round(due * SECOND) == self._last_sent.get(entry.name):
                    return PAUSE
                reached = None if self._reached is None else self._reached(entry)
                if reached is not None and round(due * SECOND) <= reached:
                    return _until_next(entry.schedule, reached, now)
            return PAUSE if ran_already(entry.schedule, entry.last_run_at, now) else None
        except Exception:
            return None  # it is said when the tick is asked for

    def _postpone(self, entry: Any, pause: float) -> float:
        """Ask an entry again in a while, and tell until when the scheduler may sleep."""
        heap = getattr(self.scheduler, "_heap", None)
        if not heap or not isinstance(heap[0], event_t) or heap[0].entry is not entry:
            return pause
        # Older schedulers leave it on top, where it keeps all others from their turn.
        when = self.scheduler._when
        heapq.heapreplace(heap, event_t(when(entry, pause), heap[0].priority, entry))
        return max(0.0, float(heap[0].time - when(entry, 0)))

    def _undo_adjust(self, delay: Any) -> Any:
        """
        Return a delay from which the scheduler's own `adjust` leaves what it was.

        It wakes 10 ms early, to find that nothing is due, and then does not sleep at all.
        """
        if not isinstance(delay, int | float) or not 0 < delay < float("inf"):
            return delay
        return delay + (delay - self.scheduler.adjust(delay))

    def _decorated(self, entry: Any, tick: Tick) -> Tick | None:
        if self._decorate is None:
            return tick
        try:
            return self._decorate(entry, tick)
        except Exception:
            logger.exception("Tick of %r at %s: sent as it is", entry.name, tick.due_at)
            return tick

    def _message_of(self, entry: Any, tick: Tick | None) -> Any:
        try:
            options = {} if self._options is None else self._options(entry, tick)
            return message_of(entry, options) if options or tick is not None else entry
        except Exception:
            logger.exception("Entry %r is sent with its own options alone", entry.name)
            return entry

    def _note(self, entry: Any, tick: Tick, error: Exception | None) -> None:
        if self._sent is None:
            return
        try:
            self._sent(entry, tick, error)
        except Exception:
            logger.exception(
                "Tick of %r at %s: what was sent is not noted", entry.name, tick.due_at
            )

    def _warn_once(self, entry: Any, reason: str) -> None:
        if entry.name not in self._warned:
            self._warned.add(entry.name)
            logger.warning(UNSTAMPED, entry.name, reason)


def _until_next(schedule: Any, reached: int, now: datetime) -> float | None:
    following = due_times(schedule).after(reached)
    if following is None:
        return None  # it will not be due again; asked for ever, it would never count as run
    return max(PAUSE, (following - to_us(now)) / SECOND)


def _has_no_id(entry: Any) -> bool:
    return "task_id" not in (entry.options or {})
