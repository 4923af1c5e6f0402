"""
Ordinary beats, of which several may run: each tick's body runs once all the same.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from celery.utils.log import get_logger

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.ticks.tick_stamping import Stamper, install, is_protected

__all__ = ["stamp_stock_beat"]

logger = get_logger(__name__)

#: A log line with all entries of a large schedule is of no use to anybody.
MAX_NAMES = 20


def stamp_stock_beat(sender: Any) -> None:
    """Stamp what the beat that starts is going to send; it starts whatever happens here."""
    scheduler = sender.scheduler
    if getattr(scheduler, "stamps_ticks", False):
        return
    app = scheduler.app

    try:
        read_settings(app)
    except ConfigurationError as error:
        logger.error(  # noqa: TRY400  # what went wrong is a setting
            "The ticks of this beat are not told apart, so that what several beats send for one "
            "tick runs several times: %s",
            error,
        )
        return

    @cache
    def locks(task: str) -> bool:
        # A task that is not loaded here may well lock where it runs.
        return task not in app.tasks or is_protected(app, task)

    _announce(scheduler, install(scheduler, protect=lambda entry: locks(entry.task)))


def _announce(scheduler: Any, stamper: Stamper) -> None:
    try:
        entries = list(scheduler.schedule.values())
    except Exception:
        logger.warning("The schedule cannot be read yet", exc_info=True)
        return
    if not entries:
        return
    stamped = [entry.name for entry in entries if stamper.stamps(entry)]
    unstamped = [entry.name for entry in entries if not stamper.stamps(entry)]
    logger.info(
        "Ticks of these entries are identified by name and due time: %s. Ticks of these are not, "
        "because their tasks do not lock: %s.",
        _listed(stamped),
        _listed(unstamped),
    )


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return (
        ", ".join(sorted(names)[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "") or "none"
    )
