"""Locked tasks that end in every way that Celery knows."""

from __future__ import annotations

import signal
import time
from typing import Any

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_redlock import RedlockTask
from tests.acceptance.apps.stage import app, await_gate, first_time, note, visiting

# Long enough to see renewals in it, short enough to wait it out.
SHORT_TTL = 3.0
# The same for a lease that must not be lost: a busy machine may stand still for two seconds.
RENEWED_TTL = 4.5
# Celery stores RETRY after the retry was sent. One that has no delay may store its result first.
RETRY_DELAY = 0.5


def _hold(self: Any, key: str) -> str:
    with visiting(self, key):
        await_gate(key)
    return "held"


app.task(_hold, base=RedlockTask, bind=True, name="hold", lock_key="{key}")
app.task(
    _hold, base=RedlockTask, bind=True, name="hold_shortly", lock_key="{key}", lock_ttl=SHORT_TTL
)
app.task(
    _hold,
    base=RedlockTask,
    bind=True,
    name="hold_late",
    lock_key="{key}",
    lock_ttl=SHORT_TTL,
    acks_late=True,
    reject_on_worker_lost=True,
)


app.task(
    _hold, base=RedlockTask, bind=True, name="hold_renewed", lock_key="{key}", lock_ttl=RENEWED_TTL
)


@app.task(base=RedlockTask, bind=True, name="fail", lock_key="{key}")
def fail(self: Any, key: str) -> None:
    with visiting(self, key):
        await_gate(key)
        raise ValueError("on purpose")


@app.task(base=RedlockTask, bind=True, name="ignore", lock_key="{key}")
def ignore(self: Any, key: str) -> None:
    with visiting(self, key):
        await_gate(key)
        raise Ignore


@app.task(base=RedlockTask, bind=True, name="reject", lock_key="{key}", acks_late=True)
def reject(self: Any, key: str) -> None:
    with visiting(self, key):
        await_gate(key)
        raise Reject("on purpose", requeue=False)


@app.task(base=RedlockTask, bind=True, name="put_back", lock_key="{key}", acks_late=True)
def put_back(self: Any, key: str) -> str:
    with visiting(self, key):
        await_gate(key)
        if first_time(key):
            raise Reject("on purpose", requeue=True)
    return "held"


@app.task(base=RedlockTask, bind=True, name="retry", lock_key="{key}", max_retries=1)
def retry(self: Any, key: str) -> str:
    with visiting(self, key):
        await_gate(key)
        if first_time(key):
            raise self.retry(countdown=RETRY_DELAY)
    return "held"


@app.task(
    base=RedlockTask,
    bind=True,
    name="autoretry",
    lock_key="{key}",
    autoretry_for=(ConnectionError,),
    default_retry_delay=RETRY_DELAY,
    max_retries=1,
)
def autoretry(self: Any, key: str) -> str:
    with visiting(self, key):
        await_gate(key)
        if first_time(key):
            raise ConnectionError("on purpose")
    return "held"


@app.task(base=RedlockTask, bind=True, name="replace", lock_key="{key}")
def replace(self: Any, key: str) -> None:
    with visiting(self, key):
        await_gate(key)
        raise self.replace(app.tasks["hold"].si(key))


@app.task(base=RedlockTask, bind=True, name="outlast_soft_limit", lock_key="{key}")
def outlast_soft_limit(self: Any, key: str) -> None:
    """Go on for as long as the test wants after the soft limit has struck."""
    with visiting(self, key):
        try:
            time.sleep(60)
        except SoftTimeLimitExceeded:
            note(key, "soft limit")
            await_gate(key)
            raise


@app.task(base=RedlockTask, bind=True, name="be_stubborn", lock_key="{key}", lock_ttl=SHORT_TTL)
def be_stubborn(self: Any, key: str) -> None:
    """Do not unwind on SIGTERM, so that only SIGKILL ends it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with visiting(self, key):
        time.sleep(60)
