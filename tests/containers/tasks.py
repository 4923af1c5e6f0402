"""What the workers in containers run; its source goes into their volume."""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import shared_task

from celery_redlock import RedlockTask
from celery_redlock.errors import StaleFencingToken
from celery_redlock.fencing import RedisFence
from tests.acceptance.apps.visible import await_gate, note, visiting

# Long enough to be renewed by a busy machine, short enough to wait it out.
TTL = 5.0
# What a restarted node sits out.
MAX_TTL = 6.0

HELD = {"base": RedlockTask, "bind": True, "lock_key": "{key}", "lock_ttl": TTL}
# After a worker's death its message goes to another one.
LATE = {"acks_late": True, "reject_on_worker_lost": True}


@shared_task(name="hold", **HELD, **LATE)
def hold(self: Any, key: str) -> str:
    """Stay in the body until the test opens the gate."""
    with visiting(self, key):
        await_gate(key)
    return "held"


@shared_task(name="hold_once", lock_mode="until_executed", **HELD, **LATE)
def hold_once(self: Any, key: str) -> str:
    """The same, where a message that comes twice runs once."""
    with visiting(self, key):
        await_gate(key)
    return "held"


@shared_task(name="write", lock_on_lost="flag", **HELD)
def write(self: Any, key: str, text: str) -> str:
    """Write under the fencing token, lost or not, once the gate of this text is open."""
    with visiting(self, key):
        await_gate(key, text)
        fence = RedisFence(redis.Redis.from_url(os.environ["CELERY_RESULT_BACKEND"]))
        try:
            fence.set(f"data:{key}", text)
        except StaleFencingToken:
            note(key, "refused", text=text)
            raise
    return "written"
