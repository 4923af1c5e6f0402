"""Locked tasks that lose their lease, and what tells them."""

from __future__ import annotations

import time
from typing import Any

from celery_redlock import RedlockTask
from tests.acceptance.apps.endings import SHORT_TTL
from tests.acceptance.apps.stage import app, await_gate, note, visiting

BASE = {"base": RedlockTask, "bind": True, "lock_key": "{key}", "lock_ttl": SHORT_TTL}


@app.task(name="sleep_on", **BASE)
def sleep_on(self: Any, key: str) -> None:
    """One long sleep: only an interrupt ends it."""
    with visiting(self, key):
        time.sleep(60)


@app.task(name="work_on", **BASE)
def work_on(self: Any, key: str) -> None:
    """Many short steps: an interrupt that comes at the next bytecode is in time."""
    with visiting(self, key):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            time.sleep(0.01)


@app.task(name="watch_flag", lock_on_lost="flag", **BASE)
def watch_flag(self: Any, key: str) -> str:
    with visiting(self, key):
        until = time.monotonic() + 60
        while self.lease.is_valid and time.monotonic() < until:
            time.sleep(0.01)
        note(key, "flagged", valid=self.lease.is_valid, lost=self.lease.lost)
        await_gate(key)
    return "went on"


def _note_loss(task: Any, lease: Any) -> None:
    note(lease.key, "told", task=task.name, lost=lease.lost)


@app.task(name="be_told", lock_on_lost=_note_loss, **BASE)
def be_told(self: Any, key: str) -> str:
    with visiting(self, key):
        await_gate(key)
    return "went on"
