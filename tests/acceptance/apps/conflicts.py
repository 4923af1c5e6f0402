"""Locked tasks that differ in what they do when somebody else holds the lock."""

from __future__ import annotations

from typing import Any

from celery_redlock import RedlockTask
from tests.acceptance.apps.stage import app, await_gate, note, visiting


def _hold(self: Any, key: str) -> str:
    with visiting(self, key):
        await_gate(key)
    return "held"


def _note_conflict(task: Any, conflict: Any) -> str:
    (key,) = task.request.args
    note(key, "conflict", error=type(conflict).__name__, holder=conflict.holder)
    return "raise"


BASE = {"base": RedlockTask, "bind": True, "lock_key": "{key}", "lock_wait": 0.05}

app.task(_hold, name="queue_up", max_retries=0, **BASE)
app.task(_hold, name="skip", lock_on_conflict="skip", lock_skip_result="skipped", **BASE)
app.task(_hold, name="skip_readably", lock_on_conflict="skip", **BASE)
app.task(_hold, name="raise", lock_on_conflict="raise", **BASE)
app.task(_hold, name="refuse", lock_on_conflict="reject", acks_late=True, **BASE)
app.task(_hold, name="decide", lock_on_conflict=_note_conflict, **BASE)
app.task(_hold, name="give_up", lock_give_up_after=1.0, **BASE)
app.task(_hold, name="come_back", lock_on_unavailable="requeue", **BASE)
app.task(_hold, name="need_quorum", lock_on_unavailable="raise", **BASE)
app.task(_hold, name="run_anyway", lock_on_unavailable="run_unlocked", **BASE)
