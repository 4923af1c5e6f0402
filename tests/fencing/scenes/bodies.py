"""Locked tasks that change a balance, in the worker of the scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery_redlock import RedlockTask
from tests.acceptance.apps.stage import app, await_gate, note, visiting
from tests.fencing.fences import KINDS, guarded_at

# Flagged and not interrupted: the body is to try its late write.
BASE = {
    "base": RedlockTask,
    "bind": True,
    "lock_key": "{key}",
    "lock_ttl": 1.0,
    "lock_on_lost": "flag",
}


@app.task(name="deposit", **BASE)
def deposit(self: Any, key: str, kind: str, url: str, amount: int, guarded: bool, gate: str) -> int:
    """Read the balance, think about it until the gate opens, and write it."""
    with visiting(self, key), guarded_at(KINDS[kind], url, Path(), key) as balance:
        if guarded:
            balance.claim(None)
        before = int(balance.read())
        note(key, "read", by=gate, balance=before, token=self.request.fencing_token)
        await_gate(key, gate)
        after = b"%d" % (before + amount)
        if guarded:
            balance.write(after, None)
        else:
            balance.overwrite(after)
        return before + amount


@app.task(name="deposit_in_steps", **BASE)
def deposit_in_steps(self: Any, key: str, kind: str, url: str, amount: int) -> int:
    """Write the balance once for each unit."""
    with visiting(self, key), guarded_at(KINDS[kind], url, Path(), key) as balance:
        for _ in range(amount):
            balance.write(b"%d" % (int(balance.read()) + 1), None)
        return int(balance.read())
