"""
The scheduler that a leader wraps: its class, its entries, and how to keep it from writing.
"""

from __future__ import annotations

import json
import shelve
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from celery.beat import Scheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name
from celery.utils.time import maybe_make_aware

from celery_redlock._log import event_logger
from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.errors import ConfigurationError
from celery_redlock.schedules.due_times import is_clocked
from celery_redlock.schedules.timeutils import from_us
from celery_redlock.tasks.message.tick import Tick

logger = event_logger(__name__)

ENTRY_POINTS = "celery.beat_schedulers"
ADVICE = (
    "Set redlock_beat_scheduler to a scheduler class, its path, such as "
    "'celery.beat:PersistentScheduler', or its alias, such as 'django', or omit it"
)

#: A last run before all due times, in seconds since the epoch.
NEVER = 0.0

#: Namespace of the task ids of ticks.
NAMESPACE = uuid.UUID("6f1f7e5a-55a3-4d7e-9d0f-3c6e8a0b7c11")


class DefaultScheduler(Scheduler):  # type: ignore[misc]  # Celery is untyped
    """
    Celery's `Scheduler`, with Celery's own entries such as `celery.backend_cleanup`.

    It has the entries of `PersistentScheduler`, Celery's default, and keeps nothing on disk.
    """

    def setup_schedule(self) -> None:
        """Install the entries: `Scheduler` merges last, which removes Celery's own."""
        self.merge_inplace(self.app.conf.beat_schedule)
        self.install_default_entries(self.schedule)


def wrapped_class(given: str | type, wrapper: type[Scheduler]) -> type[Scheduler]:
    """
    Return the scheduler class that a setting names.

    Args:
        given: a class, its path, or the alias of an entry point.
        wrapper: the class that wraps it.

    Raises:
        ConfigurationError: there is no such class, or it cannot be wrapped.
    """
    try:
        inner_class = symbol_by_name(given, aliases=dict(load_extension_class_names(ENTRY_POINTS)))
    except Exception as exc:
        # The import may raise any error, such as Django's if it is not set up.
        raise ConfigurationError(
            f"redlock_beat_scheduler={given!r} cannot be loaded ({type(exc).__name__}: {exc}). "
            f"{ADVICE}."
        ) from exc
    if not isinstance(inner_class, type) or not issubclass(inner_class, Scheduler):
        raise ConfigurationError(
            f"redlock_beat_scheduler={given!r} is not a subclass of celery.beat.Scheduler. "
            f"{ADVICE}."
        )
    if issubclass(inner_class, wrapper):
        raise ConfigurationError(
            f"redlock_beat_scheduler={given!r} would wrap itself. {ADVICE}; the wrapper is chosen "
            "with beat_scheduler, or with -S on the command line."
        )
    return inner_class


def cancel_exit_write(inner: Any) -> None:
    """Cancel the write that a scheduler has registered for the exit of the process."""
    planned = getattr(inner, "_finalize", None)  # of django-celery-beat
    if planned is not None and hasattr(planned, "cancel"):
        planned.cancel()


def mark_dirty(inner: Any, names: Iterable[str]) -> None:
    """Make a scheduler that stores only changes store these entries with its next write."""
    changed = getattr(inner, "_dirty", None)  # of django-celery-beat
    if isinstance(changed, set):
        changed.update(names)


def close_without_saving(inner: Any) -> None:
    """Close what a scheduler has open, and write nothing of its state. Never raises."""
    try:
        cancel_exit_write(inner)
        store = getattr(inner, "_store", None)
        if isinstance(store, shelve.Shelf):
            vars(store)["cache"] = {}  # which closing would write
            store.close()
    except Exception:
        logger.exception(
            "beat-scheduler-close-failed",
            "A scheduler that no longer leads could not be closed",
        )


def task_id_for(prefix: str, tick: Tick) -> str:
    """Return the task id of a tick, which is the same for every beat and every send."""
    part = [] if tick.part is None else [tick.part]
    identity = json.dumps([prefix, tick.schedule, tick.entry, tick.due_us, *part])
    return str(uuid.uuid5(NAMESPACE, identity))


def catch_up(entry: Any, state: ScheduleState, *, invented_since: datetime | None) -> None:
    """
    Continue an entry from its recorded run, or record where it begins.

    Args:
        entry: an entry of the wrapped scheduler, before it is asked when it is due.
        state: what is recorded on the nodes.
        invented_since: a last run at or after this time did not take place: the scheduler sets the
            present in entries that are new to it. None if it has read its entries before.
    """
    own = maybe_make_aware(entry.last_run_at)
    recorded = state.entry_state(entry.name)
    if recorded is None:
        # A clocked task may be added after its time, and is due until it has run.
        never_ran = is_clocked(entry.schedule) and not entry.total_run_count
        begin = NEVER if never_ran else own.timestamp()
        state.record_start(entry.name, begin, entry.total_run_count)
        return
    due = from_us(recorded.due_us)
    is_invented = invented_since is not None and own >= invented_since
    if due <= own and not is_invented:
        return
    _set(entry, "last_run_at", _in_zone_of(entry.last_run_at, due))
    model = getattr(entry, "model", None)
    has_returned = is_invented or recorded.returned_at > 0
    if has_returned and getattr(model, "one_off", False):
        return  # it was enabled again, to run once more
    _set(entry, "total_run_count", max(entry.total_run_count, recorded.count))


def uncount_unsent(entries: Mapping[str, Any], unsent: Iterable[Any]) -> ExitStack:
    """
    Restore the last run of entries that were counted as run but not sent.

    Celery counts an entry as run before it sends it. If the scheduler stored that count, the next
    leader would take it for a run, and never send the tick.

    Args:
        entries: the wrapped scheduler's entries, by name.
        unsent: the entries as they were before they were counted as run.

    Returns:
        A context that undoes this when it ends; without its use it is not undone.
    """
    undo = ExitStack()
    for entry in unsent:
        last_run_at, count = entry.last_run_at, entry.total_run_count
        counted = entries.get(entry.name)
        # django-celery-beat counts in its model, which an entry shares with its successor.
        for holder in (counted, getattr(counted, "model", None)):
            if holder is not None:
                undo.callback(_set_run, holder, holder.last_run_at, holder.total_run_count)
                _set_run(holder, last_run_at, count)
    return undo


def _set_run(entry: Any, last_run_at: datetime, total_run_count: int) -> None:
    entry.last_run_at = last_run_at
    entry.total_run_count = total_run_count


def _set(entry: Any, name: str, value: Any) -> None:
    setattr(entry, name, value)
    # django-celery-beat makes the next entry from its model.
    if hasattr(entry, "model"):
        setattr(entry.model, name, value)


def _in_zone_of(own: datetime, moment: datetime) -> datetime:
    """Return a moment in the time zone of `own`, as naive UTC if `own` is naive."""
    if own.tzinfo is None:
        return moment.astimezone(UTC).replace(tzinfo=None)
    return moment.astimezone(own.tzinfo)
