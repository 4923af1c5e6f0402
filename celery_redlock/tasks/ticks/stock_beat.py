"""
Beats with any scheduler but ours: several may run, and each tick's body still runs once.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.border import AppLike
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.ticks.entry_ticks import EntryTicks
from celery_redlock.tasks.ticks.tick_stamping import TickScheduler, adopt

logger = event_logger(__name__)

#: Most entries that one log line lists.
MAX_NAMES = 20


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
