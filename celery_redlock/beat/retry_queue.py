"""
Entries whose tick was taken from the schedule and did not get to the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["RetryQueue"]


@dataclass(slots=True)
class _Waiting:
    entry: Any
    next_at: float
    pause: float


class RetryQueue:
    """
    What is to be sent again, each entry at its time.

    Celery counts an entry as run before it sends it, and forgets what could not be sent. What is
    kept here is the entry and not the tick: when it is tried again and its next tick is due, it is
    sent for that one.

    Args:
        pause: seconds until an entry is tried again that has failed twice; then twice as long, and
            so on. An entry that can never be sent must not fill the log.
        now: reads a clock that does not step.
    """

    def __init__(self, pause: float, now: Callable[[], float]) -> None:
        self._pause = pause
        self._now = now
        self._waiting: dict[str, _Waiting] = {}

    def add(self, entry: Any, *, at_once: bool) -> None:
        """
        Keep an entry that was not sent.

        Args:
            entry: as the scheduler gave it to be sent.
            at_once: nothing was wrong with the entry; it may be tried in the next pass, the first
                time.
        """
        known = self._waiting.get(entry.name)
        pause = self._pause if known is None else known.pause
        next_at = self._now() + (0.0 if at_once and known is None else pause)
        doubled = pause if at_once and known is None else 2 * pause
        self._waiting[entry.name] = _Waiting(entry, next_at, doubled)

    def discard(self, name: str) -> None:
        """Forget an entry: its tick was sent, or a later one."""
        self._waiting.pop(name, None)

    def keep_only(self, names: Iterable[str]) -> list[str]:
        """Forget the entries that are no longer in the schedule; return their names."""
        removed = sorted(self._waiting.keys() - set(names))
        for name in removed:
            del self._waiting[name]
        return removed

    @property
    def entries(self) -> list[Any]:
        """The entries that wait, as they were before the scheduler counted them as run."""
        return [one.entry for one in self._waiting.values()]

    def ready(self) -> Any:
        """Return an entry that is to be tried now, or None."""
        now = self._now()
        return next((one.entry for one in self._waiting.values() if one.next_at <= now), None)

    def delay(self) -> float:
        """Return the seconds until the first entry is to be tried; infinite if there is none."""
        first = min((one.next_at for one in self._waiting.values()), default=float("inf"))
        return max(0.0, first - self._now())
