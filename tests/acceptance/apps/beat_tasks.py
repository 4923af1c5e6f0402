"""Tasks that a schedule sends, whose bodies write down which tick they ran for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from celery_redlock import RedlockTask
from celery_redlock.tasks.events import SIGNALS
from tests.acceptance.apps.stage import app
from tests.acceptance.apps.visible import instant, note


@contextlib.contextmanager
def running(task: Any, key: str, entry: str) -> Iterator[None]:
    """
    Note when a body begins and when and how it ends.

    Args:
        task: the task, in its body.
        key: whose journal it goes to.
        entry: what a message that names no tick was sent for.
    """
    tick = getattr(task.request, "tick", None)
    run = {
        "id": task.request.id,
        "entry": tick.entry if tick else entry,
        "due": tick.due if tick else None,
        "token": tick.token if tick else None,
    }
    note(key, "began", at=instant(), **run)
    try:
        yield
    except BaseException as reason:
        note(key, "ended", at=instant(), id=run["id"], by=type(reason).__name__)
        raise
    note(key, "ended", at=instant(), id=run["id"], by=None)


@app.task(bind=True, name="beat.plain")
def plain(self: Any, key: str, entry: str) -> None:
    """A task without a lock, which no beat gives a tick."""
    with running(self, key, entry):
        pass


@app.task(base=RedlockTask, bind=True, name="beat.tick", lock_key="{key}:{entry}")
def tick(self: Any, key: str, entry: str) -> None:
    """A short job that excludes itself."""
    with running(self, key, entry):
        pass


@app.task(base=RedlockTask, bind=True, name="beat.telling", lock_key="{key}")
def telling(self: Any, key: str, event: str) -> None:
    """A short job that shows with which arguments it was sent."""
    with running(self, key, "telling"):
        note(key, event, due=self.request.tick.due)


def note_news(sender: Any, task_id: str, signal: Any, **_: Any) -> None:
    args = getattr(getattr(sender, "request", None), "args", None)
    if args:
        note(args[0], "news", at=instant(), kind=signal.name, id=task_id)


for _signal in SIGNALS.values():
    _signal.connect(note_news)
