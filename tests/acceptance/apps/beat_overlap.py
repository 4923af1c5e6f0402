"""Jobs that take longer than their interval, with each policy, and one that is brief."""

from __future__ import annotations

import time
from typing import Any

from tenacity import wait_random

from celery_redlock import RedlockTask
from tests.acceptance.apps.beat_tasks import running
from tests.acceptance.apps.beat_times import AT_LEAST_FOR, LONG, TTL
from tests.acceptance.apps.stage import app

POLICIES = ("requeue", "skip", "stop")
OPTIONS = {
    "lock_ttl": TTL,
    # Jobs wait for seconds here; the default is for jobs that take minutes.
    "lock_retry": wait_random(0.2, 0.6),
}


def _work(self: Any, key: str, entry: str) -> None:
    with running(self, key, entry):
        time.sleep(LONG)


for _policy in POLICIES:
    app.task(
        _work,
        base=RedlockTask,
        bind=True,
        name=f"overlap.{_policy}",
        lock_key="{key}",
        lock_on_conflict=_policy,
        **OPTIONS,
    )


@app.task(
    base=RedlockTask,
    bind=True,
    name="overlap.brief",
    lock_key="{key}:{entry}",
    lock_on_conflict="skip",
    lock_at_least_for=AT_LEAST_FOR,
)
def brief(self: Any, key: str, entry: str) -> None:
    with running(self, key, entry):
        pass
