"""
The ticks of a scheduler's entries: which entries are stamped, and the tick each is sent for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.schedules.due_times import due_times, latest_due, ran_already
from celery_redlock.schedules.interval import on_grid
from celery_redlock.schedules.timeutils import SECOND, to_us
from celery_redlock.tasks.border import AppLike
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.message.tick import LONGEST_INTERVAL, Tick

logger = event_logger(__name__)

#: Seconds until a schedule is asked again that still reports a tick as due after it was sent.
PAUSE = 1.0


def schedule_name(app: AppLike) -> str:
    """Return the name of an app's schedule, which keeps the ticks of several apps apart."""
    return read_settings(app).beat_key or f"beat:{app.main or 'celery'}"


class EntryTicks:
    """
    The ticks of one scheduler's entries, as far as it knows them.

    A tick is the latest due time that has come when the scheduler reserves the entry. The entry
    counts from then on, so a tick that falls due before the send is neither lost nor sent twice.

    Nothing here raises: an entry whose tick is unknown is sent without one, and logged once.

    Args:
        app: the scheduler's app.
        protect: returns whether an entry's ticks are stamped; it is called once for each entry, and
            may raise.
        token: the fencing token of the leader that sends the ticks; None in an ordinary beat.
    """

    def __init__(
        self, app: AppLike, protect: Callable[[Any], bool], *, token: int | None = None
    ) -> None:
        self._app = app
        self._protect = protect
        self._token = token
        self._schedule = schedule_name(app)
        self._stamped: dict[tuple[str, str], bool] = {}
        self._reserved_at: dict[str, datetime | None] = {}
        self._last_sent: dict[str, int] = {}
        self._warned: set[str] = set()

    def stamps(self, entry: Any) -> bool:
        """Return whether an entry's ticks are stamped; the others stay as Celery sends them."""
        key = entry.name, entry.task
        if key not in self._stamped:
            self._stamped[key] = self._is_wanted(entry)
        return self._stamped[key]

    def load(self, entries: Iterable[Any]) -> None:
        """Align the entries of a schedule that was read again, and forget all others."""
        entries = list(entries)
        names = {entry.name for entry in entries}
        # A scheduler may make entries for one run each, whose records would pile up.
        self._stamped = {key: known for key, known in self._stamped.items() if key[0] in names}
        self._reserved_at = {name: at for name, at in self._reserved_at.items() if name in names}
        self._last_sent = {name: due for name, due in self._last_sent.items() if name in names}
        self._warned &= names
        for entry in entries:
            self.align(entry)

    def align(self, entry: Any) -> None:
        """Align a stamped entry's interval to the grid that all beats share."""
        if not self.stamps(entry):
            return
        try:
            aligned = on_grid(entry.schedule)
            if aligned is not None:
                entry.schedule = aligned
        except Exception as error:
            self.warn_once(entry, f"its schedule {entry.schedule!r} has no grid ({error!r})")

    def note_reserved(self, entry: Any, reserved: Any) -> None:
        """
        Note when the scheduler reserved an entry.

        Args:
            entry: the entry that is about to be sent.
            reserved: what the scheduler's `reserve` returned: the entry from then on.
        """
        if self.stamps(entry):
            # Some schedulers make a new entry of the schedule that they have stored.
            self.align(reserved)
            self._reserved_at[entry.name] = getattr(reserved, "last_run_at", None)

    def next_tick(self, entry: Any) -> Tick | None:
        """Return the tick that a reserved entry is sent for; None if it has none."""
        reserved_at = self._reserved_at.pop(entry.name, None)
        if not self.stamps(entry):
            return None
        try:
            now = reserved_at or entry.schedule.now()
            due = latest_due(entry.schedule, entry.last_run_at, now)
            following = None if due is None else due_times(entry.schedule).after(due)
        except Exception as error:
            self.warn_once(entry, f"its schedule {entry.schedule!r} fails ({error!r})")
            return None
        if due is None:
            self.warn_once(entry, f"its schedule {entry.schedule!r} counts from its last run")
            return None
        return Tick(
            entry=str(entry.name),
            due=due / SECOND,
            schedule=self._schedule,
            token=self._token,
            until=following and min(following / SECOND, due / SECOND + LONGEST_INTERVAL),
        )

    def note_sent(self, entry: Any, tick: Tick) -> None:
        """Note that an entry was sent for a tick."""
        self._last_sent[entry.name] = tick.due_us

    def pause_for(self, entry: Any, recorded: int | None) -> float | None:
        """
        Return the seconds until a due entry is asked again, because its last tick was sent already.

        Args:
            entry: an entry that its schedule reports as due.
            recorded: the tick that some beat is known to have sent last, in microseconds since the
                epoch; it may lie ahead of this clock.

        Returns:
            None if the entry is to be sent now.
        """
        try:
            now = entry.schedule.now()
            due = latest_due(entry.schedule, entry.last_run_at, now)
            if due is not None:
                if due == self._last_sent.get(entry.name):
                    return PAUSE
                if recorded is not None and due <= recorded:
                    return _until_next(entry.schedule, recorded, now)
            return PAUSE if ran_already(entry.schedule, entry.last_run_at, now) else None
        except Exception:
            return None  # `next_tick` logs it

    def warn_once(self, entry: Any, reason: str) -> None:
        """Log, once for each entry, why it is sent without a tick."""
        if entry.name not in self._warned:
            self._warned.add(entry.name)
            logger.warning(
                "entry-sent-without-tick",
                "Entry %(entry)r of the schedule is sent without its tick, so a worker cannot "
                "drop the message that another beat sends for the same due time: %(reason)s.",
                entry=entry.name,
                reason=reason,
            )

    def _is_wanted(self, entry: Any) -> bool:
        try:
            wanted = bool(self._protect(entry))
            named = not wanted or _has_own_name(self._app, entry)
        except Exception as error:
            self.warn_once(entry, f"whether its task locks is unknown ({error!r})")
            return False
        if not named:
            logger.warning(
                "entry-without-name",
                "Entry %(entry)r of the schedule has no name of its own, so the text of its call "
                "identifies its ticks: with other arguments it becomes another entry, and beats "
                "whose texts differ send different ticks. Give it a name: add_periodic_task(..., "
                "name='...').",
                entry=entry.name,
            )
        return wanted


def _has_own_name(app: AppLike, entry: Any) -> bool:
    """
    Return whether an entry was given a name.

    `add_periodic_task` names an unnamed entry by the text of its call. It becomes another entry if
    an argument changes, and differs from beat to beat if the text contains a memory address.
    """
    call = app.signature(entry.task, args=entry.args or (), kwargs=entry.kwargs or {})
    return bool(repr(call) != entry.name)


def _until_next(schedule: Any, recorded: int, now: datetime) -> float | None:
    following = due_times(schedule).after(recorded)
    if following is None:
        return None  # its last due time: if it were postponed, the entry would never count as run
    return max(PAUSE, (following - to_us(now)) / SECOND)
