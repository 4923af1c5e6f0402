"""
Copies of entries: a message may have other options than its entry, and another scheduler's changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from celery.beat import BeatLazyFunc

from celery_redlock._log import event_logger
from celery_redlock.tasks.ticks.tick_context import no_tick

__all__ = ["NO_OPTIONS", "entry_copy"]

logger = event_logger(__name__)

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def entry_copy(entry: Any, options: Mapping[str, Any] = NO_OPTIONS) -> Any:
    """
    Return a copy of an entry to be sent, so that the entry itself keeps what it has.

    Args:
        entry: the entry; it is returned itself if it cannot be copied.
        options: these go before the entry's own.
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
            "Entry %(entry)r is sent with its own options alone",
            entry=entry.name,
        )
        return entry
    return message


class _WithoutTick(BeatLazyFunc):  # type: ignore[misc]  # Celery is untyped
    """An argument that is evaluated as the message is made; what it sends itself is no tick."""

    def delay(self) -> Any:
        """Evaluate it."""
        with no_tick():
            return super().delay()


def _without_tick(value: Any) -> Any:
    return _WithoutTick(value) if isinstance(value, BeatLazyFunc) else value
