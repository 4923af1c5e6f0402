"""
Locked tasks that send themselves again because their lease is lost.

The last body of each notes its end. The result would not do: Celery stores RETRY after it has sent
the retry, and so may overwrite what the retry has stored by then.
"""

from __future__ import annotations

import _thread
import time
from typing import Any

from celery_redlock import RedlockTask
from celery_redlock.errors import LeaseLost
from tests.acceptance.apps.stage import app, await_gate, note, visiting

BASE = {"base": RedlockTask, "bind": True, "lock_key": "{key}-{number}", "acks_late": True}


def lose(task: Any) -> None:
    """Lose the lease as the watchdog does: from another thread, which does not wait."""
    _thread.start_new_thread(task.lease.mark_lost, ("taken away",))


AUTOMATIC = {
    "autoretry_for": (LeaseLost,),
    "retry_kwargs": {"countdown": 0, "max_retries": None},
}


@app.task(name="outlast", lock_ttl=1.5, **AUTOMATIC, **BASE)
def outlast(self: Any, key: str, number: int) -> None:
    """Check the lease at each step until it is lost for the first time; the retry waits."""
    with visiting(self, key):
        while not self.request.retries:
            self.lease.check()
            time.sleep(0.001)
        await_gate(key)


def _check(self: Any, key: str, number: int, attempts: int) -> None:
    """What the README says: check the lease, and let Celery try again."""
    if self.request.retries < attempts:
        lose(self)
        while True:
            self.lease.check()
            time.sleep(0)
    note(key, "done", number=number, after=self.request.retries)


app.task(_check, name="retry_on_check", **AUTOMATIC, **BASE)
app.task(_check, name="retry_unique", lock_mode="until_executed", **AUTOMATIC, **BASE)


@app.task(name="retry_by_hand", **BASE)
def retry_by_hand(self: Any, key: str, number: int, attempts: int) -> None:
    """Call `self.retry` as soon as the lease is not valid; the loss may strike before that."""
    if self.request.retries < attempts:
        try:
            lose(self)
            while self.lease.is_valid:
                time.sleep(0)
            raise self.retry(countdown=0, max_retries=attempts)
        except LeaseLost as loss:
            raise self.retry(countdown=0, max_retries=attempts) from loss
    note(key, "done", number=number, after=self.request.retries)


@app.task(name="replace_when_lost", **BASE)
def replace_when_lost(self: Any, key: str, number: int, attempts: int, done: int = 0) -> None:
    """Let a replacement go on as soon as the lease is not valid."""
    if done < attempts:
        try:
            lose(self)
            while self.lease.is_valid:
                time.sleep(0)
            raise self.replace(self.s(key, number, attempts, done + 1))
        except LeaseLost as loss:
            raise self.replace(self.s(key, number, attempts, done + 1)) from loss
    note(key, "done", number=number, after=done)
