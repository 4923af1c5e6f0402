"""
The names of schedules, and of entries that nobody has named.
"""

from __future__ import annotations

from typing import Any

from celery_redlock.tasks.config.settings import read_settings

__all__ = ["has_own_name", "schedule_name"]


def has_own_name(app: Any, entry: Any) -> bool:
    """
    Tell whether an entry was given a name.

    `add_periodic_task` calls one that was not by its call, arguments and all. It is another entry
    when these change, and one in every beat where their text has an address in it.
    """
    call = app.signature(entry.task, args=entry.args or (), kwargs=entry.kwargs or {})
    return bool(repr(call) != entry.name)


def schedule_name(app: Any) -> str:
    """Return the name of an app's schedule, by which the ticks of several apps are told apart."""
    return read_settings(app).beat_key or f"beat:{app.main or 'celery'}"
