"""
Copies of entries, which take a message's own options and a scheduler's changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from celery.beat import BeatLazyFunc

from celery_redlock._log import event_logger
from celery_redlock.tasks.ticks.tick_context import no_tick

logger = event_logger(__name__)

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def entry_copy(entry: Any, options: Mapping[str, Any] = NO_OPTIONS) -> Any:
    """
    Return a copy of an entry to be sent, so that the entry itself does not change.

    Args:
        entry: the entry; it is returned itself if it cannot be copied.
        options: these override the entry's own.
    """
    try:
        own = {**(entry.options or {}), **options}
        if isinstance(own.get("headers"), Mapping):
            # Celery writes into them.
            own["headers"] = dict(own["headers"])
        message = object.__new__(type(entry))
        vars(message).update(
            vars(entry),
            options=own,
            args=[_without_tick(value) for value in entry.args or ()],
            kwargs={name: _without_tick(value) for name, value in (entry.kwargs or {}).items()},
        )
    except Exception:
        logger.exception(
            "entry-not-stamped",
            "Entry %(entry)r is sent with only its own options",
            entry=entry.name,
        )
        return entry
    return message


class _WithoutTick(BeatLazyFunc):  # type: ignore[misc]  # Celery is untyped
    """A lazy argument of a message; a message that it sends while it is evaluated has no tick."""

    def delay(self) -> Any:
        """Evaluate it."""
        with no_tick():
            return super().delay()


def _without_tick(value: Any) -> Any:
    return _WithoutTick(value) if isinstance(value, BeatLazyFunc) else value
