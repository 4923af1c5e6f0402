"""
The log of missed runs: due times for which no send is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from celery_redlock._log import event_logger
from celery_redlock.beat.entries import MAX_MISSED_COUNT

logger = event_logger(__name__)

#: Seconds. A new leader sends its entries one by one; their missed runs are reported together.
GATHERED_FOR = 1.0
#: Seconds between two reports: a beat that is always late must not fill the log.
QUIET_FOR = 60.0
#: Up to this many entries get a line each; with more, one line names those that missed the most.
MAX_LISTED = 5
WHY = "no beat led, the beat was late, or the sends could not be recorded"


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
