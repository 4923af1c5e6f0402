"""Locked tasks that change a balance, in the worker of the scenes."""

from __future__ import annotations

import contextlib
from typing import Any

from celery_redlock import RedlockTask
from tests.acceptance.apps.stage import app, await_gate, note, visiting
from tests.fencing.scenes.resources import resource_at

# Flagged and not interrupted: the body is to try its late write.
BASE = {
    "base": RedlockTask,
    "bind": True,
    "lock_key": "{key}",
    "lock_ttl": 1.0,
    "lock_on_lost": "flag",
}


@app.task(name="deposit", **BASE)
def deposit(self: Any, key: str, url: str, amount: int, guarded: bool, gate: str) -> int:
    """Read the balance, think about it until the gate opens, and write it."""
    with visiting(self, key), contextlib.closing(resource_at(url, key)) as balance:
        if guarded:
            balance.claim()
        before = balance.read()
        note(key, "read", by=gate, balance=before, token=self.request.fencing_token)
        await_gate(key, gate)
        if guarded:
            balance.guarded_write(before + amount)
        else:
            balance.write(before + amount)
        return before + amount


@app.task(name="deposit_in_steps", **BASE)
def deposit_in_steps(self: Any, key: str, url: str, amount: int) -> int:
    """Write the balance once for each unit."""
    with visiting(self, key), contextlib.closing(resource_at(url, key)) as balance:
        for _ in range(amount):
            balance.guarded_write(balance.read() + 1)
        return balance.read()
