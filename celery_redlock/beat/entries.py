"""
The entries of the wrapped scheduler: what a leader reads from them and sets in them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from celery.utils.time import maybe_make_aware

from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.schedules.due_times import due_times, is_clocked
from celery_redlock.schedules.interval import IntervalDueTimes
from celery_redlock.schedules.timeutils import from_us
from celery_redlock.tasks.message.tick import Tick

#: Missed ticks are counted up to this number.
MAX_MISSED_COUNT = 1000

#: A last run before all due times, in seconds since the epoch.
NEVER = 0.0

#: Namespace of the task ids of ticks.
NAMESPACE = uuid.UUID("6f1f7e5a-55a3-4d7e-9d0f-3c6e8a0b7c11")


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


def missed_count(schedule: Any, before: int, due: int) -> int:
    """
    Return the number of due times between two others, at most `MAX_MISSED_COUNT`.

    Args:
        schedule: the entry's schedule.
        before: a due time, in microseconds since the epoch.
        due: a later due time.
    """
    times = due_times(schedule)
    if type(times) is IntervalDueTimes:
        return min(max(0, (due - 1) // times.step - before // times.step), MAX_MISSED_COUNT)
    count = 0
    following = times.after(before)
    while following is not None and following < due and count < MAX_MISSED_COUNT:
        count += 1
        following = times.after(following)
    return count


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
