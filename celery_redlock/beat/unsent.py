"""
The runs that a leader has not sent: entries that it tries again, and due times that were missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.schedules.due_times import due_times
from celery_redlock.schedules.interval import IntervalDueTimes

logger = event_logger(__name__)

#: Missed ticks are counted up to this number.
MAX_MISSED_COUNT = 1000
#: Seconds. A new leader sends its entries one by one; their missed runs are reported together.
GATHERED_FOR = 1.0
#: Seconds between two reports: a beat that is always late must not fill the log.
QUIET_FOR = 60.0
#: Up to this many entries get a line each; with more, one line names those that missed the most.
MAX_LISTED = 5
WHY = "no beat led, the beat was late, or the sends could not be recorded"


class RetryQueue:
    """
    Entries that a leader could not send.

    Celery counts an entry as run before it sends it, and forgets a failed send. The queue keeps the
    entry, not the tick: if the next tick is due at the next try, the entry is sent for that tick.

    Args:
        pause: seconds before the next try of an entry, doubled with each failure: an entry that can
            never be sent must not fill the log.
        now: reads a monotonic clock.
    """

    def __init__(self, pause: float, now: Callable[[], float]) -> None:
        self._pause = pause
        self._now = now
        #: Each entry with the time of its next try, and the pause after the next failure.
        self._waiting: dict[str, tuple[Any, float, float]] = {}

    def add(self, entry: Any, *, at_once: bool) -> None:
        """
        Keep an entry that was not sent.

        Args:
            entry: the entry as it was before the scheduler counted it as run.
            at_once: the entry did not cause the failure; its first retry is in the next pass.
        """
        _, _, pause = self._waiting.get(entry.name, (entry, 0.0, self._pause))
        at_once = at_once and entry.name not in self._waiting
        next_at = self._now() + (0.0 if at_once else pause)
        self._waiting[entry.name] = (entry, next_at, pause if at_once else 2 * pause)

    def discard(self, name: str) -> None:
        """Remove an entry: its tick was sent, or a later one."""
        self._waiting.pop(name, None)

    def keep_only(self, names: Iterable[str]) -> list[str]:
        """Remove the entries that have left the schedule; return their names."""
        removed = sorted(self._waiting.keys() - set(names))
        for name in removed:
            del self._waiting[name]
        return removed

    @property
    def entries(self) -> list[Any]:
        """The entries, as they were before the scheduler counted them as run."""
        return [entry for entry, _, _ in self._waiting.values()]

    def ready(self) -> Any:
        """Return an entry whose time for a retry has come, or None."""
        now = self._now()
        return next((entry for entry, at, _ in self._waiting.values() if at <= now), None)

    def delay(self) -> float:
        """Return the seconds until the first retry; infinite if the queue is empty."""
        first = min((at for _, at, _ in self._waiting.values()), default=float("inf"))
        return max(0.0, first - self._now())


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


@dataclass(slots=True)
class _Gap:
    count: int
    is_more: bool
    first: datetime
    last: datetime

    @property
    def count_text(self) -> str:
        return f"{self.count} or more" if self.is_more else str(self.count)


class MissedRuns:
    """
    The missed runs of all entries, summed up: each due time is counted in exactly one report.

    Args:
        now: reads a monotonic clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._gaps: dict[str, _Gap] = {}
        self._report_at: float | None = None
        self._quiet_until = now()

    def note(self, entry: str, count: int, first: datetime, last: datetime) -> None:
        """
        Note the missed due times of an entry between two others.

        Args:
            entry: the entry's name.
            count: the number of due times; `MAX_MISSED_COUNT` means at least that many.
            first: the recorded due time before them.
            last: the due time after them, for which the entry was sent.
        """
        if self._report_at is None:
            self._report_at = max(self._now() + GATHERED_FOR, self._quiet_until)
        gap = self._gaps.setdefault(entry, _Gap(0, False, first, last))
        gap.count += count
        gap.is_more = gap.is_more or count == MAX_MISSED_COUNT
        gap.last = last

    def report(self, *, at_once: bool = False) -> None:
        """
        Log what was noted, if it is time to.

        Args:
            at_once: log now: there is no later call.
        """
        now = self._now()
        if self._report_at is None or (now < self._report_at and not at_once):
            return
        gaps, self._gaps = self._gaps, {}
        self._report_at, self._quiet_until = None, now + QUIET_FOR
        if len(gaps) > MAX_LISTED:
            _report_summary(gaps)
            return
        for entry, gap in gaps.items():
            logger.warning(
                "beat-entry-missed-runs",
                "Entry %(entry)r has no record of being sent for %(missed)s of its due times "
                "between %(first)s and %(last)s: %(reason)s. The last send covers them",
                entry=entry,
                missed=gap.count_text,
                count=gap.count,
                first=gap.first,
                last=gap.last,
                reason=WHY,
            )


def _report_summary(gaps: dict[str, _Gap]) -> None:
    total = _Gap(
        sum(gap.count for gap in gaps.values()),
        any(gap.is_more for gap in gaps.values()),
        min(gap.first for gap in gaps.values()),
        max(gap.last for gap in gaps.values()),
    )
    worst = sorted(gaps, key=lambda entry: -gaps[entry].count)[:MAX_LISTED]
    logger.warning(
        "beat-entries-missed-runs",
        "%(entry_count)d entries have no record of being sent for %(missed)s of their due times "
        "between %(first)s and %(last)s: %(reason)s. The last send of each covers them (most: "
        "%(worst)s)",
        entry_count=len(gaps),
        missed=total.count_text,
        count=total.count,
        first=total.first,
        last=total.last,
        reason=WHY,
        worst=", ".join(f"{entry!r} for {gaps[entry].count_text}" for entry in worst),
    )
