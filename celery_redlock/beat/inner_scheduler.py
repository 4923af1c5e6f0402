"""
The scheduler that a leader wraps: its class, and how to keep it from writing.
"""

from __future__ import annotations

import shelve
from collections.abc import Iterable
from typing import Any

from celery.beat import Scheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name

from celery_redlock._log import event_logger
from celery_redlock.errors import ConfigurationError

logger = event_logger(__name__)

NAMESPACE = "celery.beat_schedulers"
ADVICE = (
    "Set redlock_beat_scheduler to a scheduler class, its path, such as "
    "'celery.beat:PersistentScheduler', or its alias, such as 'django', or omit it"
)


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
        inner_class = symbol_by_name(given, aliases=dict(load_extension_class_names(NAMESPACE)))
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
