"""
The demo as plain lines, for pipes, logs and terminals that cannot do more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from celery_redlock.demo.stage import Event, Stage
from celery_redlock.demo.verdict import Check

__all__ = ["PlainView"]


class PlainView:
    """Prints each event when it happens, and the table at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, event: Event) -> None:
        """Print an event."""
        print(f"{event.at:6.1f} s  {event.kind:<7} {event.text}", flush=True)

    def refresh(self, stage: Stage) -> None:
        """Nothing changes but by events."""

    def conclude(self, checks: Sequence[Check], conclusion: str, *, good: bool) -> None:
        """Print the table and what follows from it."""
        width = max(len(check.subject) for check in checks)
        print(f"\n{'':<{width}}  {'expected':<12}found")
        for check in checks:
            mark = "ok" if check.holds else "NOT SO"
            print(f"{check.subject:<{width}}  {check.expected:<12}{check.found:<12}{mark}")
        print(f"\n{conclusion}", flush=True)
