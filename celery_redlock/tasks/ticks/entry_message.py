"""
What a beat sends for an entry, where that differs from the entry itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.beat import BeatLazyFunc

from celery_redlock.tasks.ticks.tick_context import no_tick

__all__ = ["message_of"]


def message_of(entry: Any, options: Mapping[str, Any]) -> Any:
    """
    Return a copy of an entry to be sent, of which the entry itself sees nothing.

    Args:
        entry: the entry; its class may be any.
        options: what goes before its own options.
    """
    own = {**(entry.options or {}), **options}
    if isinstance(own.get("headers"), Mapping):
        # Celery writes into them.
        own["headers"] = dict(own["headers"])
    message = object.__new__(type(entry))
    vars(message).update(
        vars(entry),
        options=own,
        args=[_apart(value) for value in entry.args or ()],
        kwargs={name: _apart(value) for name, value in (entry.kwargs or {}).items()},
    )
    return message


class _Apart(BeatLazyFunc):  # type: ignore[misc]  # Celery is untyped
    """An argument that is evaluated as the message is made; what it sends itself is no tick."""

    def delay(self) -> Any:
        """Evaluate it."""
        with no_tick():
            return super().delay()


def _apart(value: Any) -> Any:
    return _Apart(value) if isinstance(value, BeatLazyFunc) else value
