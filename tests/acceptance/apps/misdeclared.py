"""One task, declared with whatever options the test hands in."""

from __future__ import annotations

from celery_redlock import RedlockTask
from tests.acceptance.apps.stage import STAGE, app


@app.task(base=RedlockTask, name="misdeclared", **STAGE["declare"])
def misdeclared(account_id: int) -> int:
    return account_id
