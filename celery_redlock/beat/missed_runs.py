"""
The due times of entries for which nothing is known to have been sent, as the log tells them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from celery.utils.log import get_logger

from celery_redlock.beat.entries import MAX_MISSED_COUNT

__all__ = ["MissedRuns"]

logger = get_logger(__name__)

#: Seconds. Who takes over sends its entries one by one, and what they have missed is told together.
GATHERED_FOR = 1.0
#: Seconds between two reports: a beat that is always late must not fill the log.
QUIET_FOR = 60.0
#: So many entries get a line each; of more, one line names those that have missed the most.
MAX_LISTED = 5
WHY = "nobody led, the beat was late, or what was sent could not be recorded"


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
    What entries have missed, summed up: each due time is counted in some report, none in two.

    Args:
        now: reads a clock that does not step.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._gaps: dict[str, _Gap] = {}
        self._report_at: float | None = None
        self._quiet_until = now()

    def note(self, entry: str, count: int, first: datetime, last: datetime) -> None:
        """
        Note due times of an entry that lie between two others.

        Args:
            entry: its name.
            count: how many; `MAX_MISSED_COUNT` stands for more.
            first: the recorded one before them.
            last: the one after them, which is sent.
        """
        if self._report_at is None:
            self._report_at = max(self._now() + GATHERED_FOR, self._quiet_until)
        gap = self._gaps.setdefault(entry, _Gap(0, False, first, last))
        gap.count += count
        gap.is_more = gap.is_more or count == MAX_MISSED_COUNT
        gap.last = last

    def report(self, *, at_once: bool = False) -> None:
        """
        Report what was noted, if it is time to.

        Args:
            at_once: this is the end, and there is no later.
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
                "Entry %r has no record of being sent for %s of its due times between %s and %s: "
                "%s. What was sent last stands for them",
                entry,
                gap.count_text,
                gap.first,
                gap.last,
                WHY,
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
        "%d entries have no record of being sent for %s of their due times between %s and %s: %s. "
        "What was sent last of each stands for them (most of all %s)",
        len(gaps),
        total.count_text,
        total.first,
        total.last,
        WHY,
        ", ".join(f"{entry!r} for {gaps[entry].count_text}" for entry in worst),
    )
