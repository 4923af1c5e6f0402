"""Tasks that wait for a key, and note how much longer their messages would have waited."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from celery_redlock import RedlockTask
from tests.acceptance.apps.stage import app
from tests.acceptance.apps.visible import instant, note


def _run(self: Any, key: str) -> None:
    eta = self.request.eta
    early = 0.0
    if eta:
        early = (datetime.fromisoformat(eta) - datetime.now(UTC)).total_seconds()
    note(key, "ran", id=self.request.id, early_by=early, at=instant())


# The longest TTL: a message waits for up to that, so few have to be requeued to wait for long.
BASE = {"base": RedlockTask, "bind": True, "lock_key": "{key}", "lock_ttl": 60.0}

app.task(_run, name="waiting.run", **BASE)
app.task(_run, name="waiting.run_late", acks_late=True, **BASE)
app.task(_run, name="waiting.run_fair", lock_fair=True, **BASE)
app.task(_run, name="waiting.run_limited", rate_limit="30/m", **BASE)

#: Of `waiting.run_patient`: longer than a release takes to reach all nodes.
PATIENCE = 2.0

app.task(_run, name="waiting.run_patient", lock_wait=PATIENCE, **BASE)
