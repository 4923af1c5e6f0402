"""
Tasks with a limit or a rate, which note when a body begins and when it ends.

`declare` gives them to an app: a worker's, and that of a publisher in the test's own process.
"""

from __future__ import annotations

import time
from typing import Any

from celery import Celery

from celery_redlock import Limit, Rate, RedlockTask
from celery_redlock.protocol.keys import owner_timestamp_us
from tests.acceptance.apps.visible import await_gate, note

LIMIT = 2
#: Seconds that a body takes which is to overlap with others.
BODY = 0.2
SHORT_TTL = 0.2
MODES = {
    "while_executing": {},
    "until_executing": {},
    "until_executed": {},
    "until_and_while_executing": {},
    "until_expired": {"lock_window": 2.0},
}
#: Of how many starts in a second, in `limits.rated`; in an hour, where more are dropped.
RATE = 5


def _begin(self: Any, key: str, **facts: Any) -> None:
    """Note when the body begins, and when the attempt began that got its lock."""
    lease = self.lease
    attempt = lease and owner_timestamp_us(lease.owner) / 1_000_000
    facts = {"slot": lease and lease.slot, **facts}
    note(key, "begun", id=self.request.id, attempt=attempt, at=time.time(), **facts)


def _work(self: Any, key: str, *_: Any) -> None:
    _begin(self, key)
    time.sleep(BODY)
    note(key, "ended", id=self.request.id, at=time.time())


def _last(self: Any, key: str, *_: Any) -> None:
    _begin(self, key)
    time.sleep(4 * SHORT_TTL)
    note(key, "ended", id=self.request.id)


def _wait(self: Any, key: str, *_: Any) -> str:
    try:
        _begin(self, key, token=self.request.fencing_token)
        await_gate(key, self.request.id)
    except BaseException as reason:
        note(key, "unwound", id=self.request.id, by=type(reason).__name__)
        raise
    note(key, "ended", id=self.request.id)
    return "held"


def _start(self: Any, key: str, *_: Any) -> None:
    _begin(self, key)


def _retry(self: Any, key: str, *_: Any) -> None:
    _begin(self, key)
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)


def declare(app: Celery) -> None:
    """Declare the tasks."""
    base: dict[str, Any] = {"base": RedlockTask, "bind": True, "shared": False}
    limited = {**base, "lock_key": "{key}", "lock_limit": LIMIT}
    for mode, options in MODES.items():
        app.task(_work, name=f"limits.{mode}", lock_mode=mode, **options, **limited)
    app.task(_wait, name="limits.held", lock_ttl=2.0, **limited)
    app.task(_wait, name="limits.held_late", lock_ttl=3.0, acks_late=True,
             reject_on_worker_lost=True, **limited)  # fmt: skip
    app.task(_wait, name="limits.held_from_publish", lock_mode="until_executed", **limited)
    app.task(_retry, name="limits.retried", lock_mode="until_executed", **limited)
    rated = {**base, "lock_key": "{key}", "lock_rate": f"{RATE}/s"}
    app.task(_start, name="limits.rated", **rated)
    app.task(_start, name="limits.counted", lock_mode="until_executed", **rated)
    app.task(_last, name="limits.long", lock_ttl=SHORT_TTL, **rated)
    app.task(_start, name="limits.rated_late", acks_late=True, **rated)
    few = {**rated, "lock_rate": f"{RATE}/h", "acks_late": True}
    app.task(_start, name="limits.dropped", lock_on_conflict="skip", **few)
    app.task(_start, name="limits.refused", lock_on_conflict="raise", **few)
    several = ["plain:{key}:{n}", Limit("{key}", LIMIT), Rate("{key}", f"{RATE}/s")]

    @app.task(name="limits.several", lock_key=several, **base)
    def _several(self: Any, key: str, n: int) -> None:
        _work(self, key)
