"""
Entries that could not be sent, each with the time of its next try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Waiting:
    entry: Any
    next_at: float
    pause: float


class RetryQueue:
    """
    Entries that a leader could not send.

    Celery counts an entry as run before it sends it, and forgets a failed send. The queue keeps the
    entry, not the tick: if the next tick is due at the next try, the entry is sent for that tick.

    Args:
        pause: seconds before the next try of an entry, doubled with each failure: an entry that can
            never be sent must not fill the log.
        now: reads a monotonic clock.
    """

    def __init__(self, pause: float, now: Callable[[], float]) -> None:
        self._pause = pause
        self._now = now
        self._waiting: dict[str, _Waiting] = {}

    def add(self, entry: Any, *, at_once: bool) -> None:
        """
        Keep an entry that was not sent.

        Args:
            entry: the entry as it was before the scheduler counted it as run.
            at_once: the entry did not cause the failure; its first retry is in the next pass.
        """
        known = self._waiting.get(entry.name)
        pause = self._pause if known is None else known.pause
        next_at = self._now() + (0.0 if at_once and known is None else pause)
        doubled = pause if at_once and known is None else 2 * pause
        self._waiting[entry.name] = _Waiting(entry, next_at, doubled)

    def discard(self, name: str) -> None:
        """Remove an entry: its tick was sent, or a later one."""
        self._waiting.pop(name, None)

    def keep_only(self, names: Iterable[str]) -> list[str]:
        """Remove the entries that have left the schedule; return their names."""
        removed = sorted(self._waiting.keys() - set(names))
        for name in removed:
            del self._waiting[name]
        return removed

    @property
    def entries(self) -> list[Any]:
        """The entries, as they were before the scheduler counted them as run."""
        return [waiting.entry for waiting in self._waiting.values()]

    def ready(self) -> Any:
        """Return an entry whose time for a retry has come, or None."""
        now = self._now()
        return next((each.entry for each in self._waiting.values() if each.next_at <= now), None)

    def delay(self) -> float:
        """Return the seconds until the first retry; infinite if the queue is empty."""
        first = min((each.next_at for each in self._waiting.values()), default=float("inf"))
        return max(0.0, first - self._now())
