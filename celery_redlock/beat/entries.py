"""
What a leader makes of the entries of the scheduler that it wraps, and of their ticks.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from celery.utils.time import maybe_make_aware

from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.schedules.due_times import due_times, is_once
from celery_redlock.schedules.interval import IntervalDueTimes
from celery_redlock.schedules.timeutils import SECOND, from_us
from celery_redlock.tasks.message.tick import Tick

__all__ = ["MAX_MISSED_COUNT", "catch_up", "missed_count", "task_id_for", "uncount_unsent"]

#: Ticks that were missed are counted so far.
MAX_MISSED_COUNT = 1000

#: Before all due times, in seconds since the epoch.
NEVER = 0.0

#: Of the task ids of ticks.
NAMESPACE = uuid.UUID("6f1f7e5a-55a3-4d7e-9d0f-3c6e8a0b7c11")


def task_id_for(prefix: str, tick: Tick) -> str:
    """Return the id of the task that a tick is sent as, whoever sends it and however often."""
    identity = json.dumps([prefix, tick.schedule, tick.entry, tick.due_us])
    return str(uuid.uuid5(NAMESPACE, identity))


def catch_up(entry: Any, records: ScheduleState, *, invented_since: datetime | None) -> None:
    """
    Let an entry go on where the schedule has got to, or note where it begins.

    Args:
        entry: of the wrapped scheduler, about to be asked when it is due.
        records: what the nodes know.
        invented_since: a last run at this time or later is nothing that the scheduler knows: it
            begins entries that it has never seen with the present. None if it has seen them all.
    """
    own = maybe_make_aware(entry.last_run_at)
    state = records.entry_state(entry.name)
    if state is None:
        # A clocked task may be entered after its time, and is due all the same until it has run.
        never_ran = is_once(entry.schedule) and not entry.total_run_count
        begin = NEVER if never_ran else own.timestamp()
        records.record_start(entry.name, begin, entry.total_run_count)
        return
    recorded = from_us(state.due_us)
    is_invented = invented_since is not None and own >= invented_since
    if recorded <= own and not is_invented:
        return
    _set(entry, "last_run_at", _in_zone_of(entry.last_run_at, recorded))
    model = getattr(entry, "model", None)
    if is_invented and getattr(model, "one_off", False):
        return  # somebody has enabled it again, to run once more
    _set(entry, "total_run_count", max(entry.total_run_count, state.count))


def uncount_unsent(entries: Mapping[str, Any], unsent: Iterable[Any]) -> list[Callable[[], None]]:
    """
    Let entries say again what they said before they were counted as run, if they were not sent.

    Celery counts an entry as run before it sends it. Stored like that, the run would be believed by
    whoever leads next, and its tick would never be sent.

    Args:
        entries: the wrapped scheduler's, by name.
        unsent: as the scheduler gave them to be sent.

    Returns:
        What undoes it, if the last is done first.
    """
    undo: list[Callable[[], None]] = []
    for entry in unsent:
        last_run_at, count = entry.last_run_at, entry.total_run_count
        counted = entries.get(entry.name)
        # django-celery-beat counts in its model, which an entry shares with the one after it.
        for one in (counted, getattr(counted, "model", None)):
            if one is not None:
                undo.append(partial(_set_run, one, one.last_run_at, one.total_run_count))
                _set_run(one, last_run_at, count)
    return undo


def missed_count(schedule: Any, before: float, due: float) -> int:
    """
    Return how many ticks a schedule had between two, `MAX_MISSED_COUNT` if there are more.

    Args:
        schedule: the entry's schedule.
        before: a due time, in seconds since the epoch.
        due: a later one.
    """
    first, last = round(before * SECOND), round(due * SECOND)
    times = due_times(schedule)
    if type(times) is IntervalDueTimes:
        return min(max(0, (last - 1) // times.step - first // times.step), MAX_MISSED_COUNT)
    count = 0
    following = times.after(first)
    while following is not None and following < last and count < MAX_MISSED_COUNT:
        count += 1
        following = times.after(following)
    return count


def _set_run(entry: Any, last_run_at: datetime, total_run_count: int) -> None:
    entry.last_run_at = last_run_at
    entry.total_run_count = total_run_count


def _set(entry: Any, name: str, value: Any) -> None:
    setattr(entry, name, value)
    # django-celery-beat makes the next entry of its model.
    if hasattr(entry, "model"):
        setattr(entry.model, name, value)


def _in_zone_of(own: datetime, moment: datetime) -> datetime:
    """Return a moment in the form in which an entry keeps its own: without a zone it is UTC."""
    if own.tzinfo is None:
        return moment.astimezone(UTC).replace(tzinfo=None)
    return moment.astimezone(own.tzinfo)
