"""
Ordinary beats, of which several may run: each tick's body runs once all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery.utils.log import get_logger

from celery_redlock.errors import RedlockError
from celery_redlock.tasks.schedules.stamping import install, is_protected

__all__ = ["identify_ticks"]

logger = get_logger(__name__)

#: A log line with all entries of a large schedule is of no use to anybody.
MOST_NAMES = 20


def identify_ticks(sender: Any) -> None:
    """Stamp what the beat that starts is going to send; it starts whatever happens here."""
    scheduler = sender.scheduler
    if getattr(scheduler, "identifies_ticks", False):
        return
    app = scheduler.app

    def wanted(entry: Any) -> bool:
        # A task that is not loaded here may well lock where it runs.
        return entry.task not in app.tasks or is_protected(app, entry.task)

    try:
        entries = list(scheduler.schedule.values())
        chosen = {entry.name: wanted(entry) for entry in entries}
    except RedlockError as error:
        logger.error(  # noqa: TRY400  # what went wrong is a setting
            "The ticks of this beat are not told apart, so that what several beats send for one "
            "tick runs several times: %s",
            error,
        )
        return
    install(scheduler, protect=wanted)
    if entries:
        told = _listed(name for name, yes in chosen.items() if yes)
        untold = _listed(name for name, yes in chosen.items() if not yes)
        logger.info(
            "Ticks of these entries are identified by name and due time: %s. Ticks of these are "
            "not, because their tasks do not lock: %s.",
            told,
            untold,
        )


def _listed(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = len(listed) - MOST_NAMES
    return ", ".join(listed[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "") or "none"
