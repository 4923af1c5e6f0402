"""Locked tasks that lose their lease, and what tells them."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from celery_redlock import RedlockTask
from celery_redlock.errors import LeaseLost
from tests.acceptance.apps.endings import RENEWED_TTL, SHORT_TTL
from tests.acceptance.apps.stage import app, await_gate, note, visiting

BASE = {"base": RedlockTask, "bind": True, "lock_key": "{key}", "lock_ttl": SHORT_TTL}


@app.task(name="sleep_on", **BASE)
def sleep_on(self: Any, key: str) -> None:
    """One long sleep: only an interrupt ends it."""
    with visiting(self, key):
        time.sleep(60)


@app.task(name="work_on", **BASE)
def work_on(self: Any, key: str) -> None:
    """Many short steps: an interrupt that comes at the next bytecode is in time."""
    with visiting(self, key):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            time.sleep(0.01)


@app.task(name="watch_flag", lock_on_lost="flag", **BASE)
def watch_flag(self: Any, key: str) -> str:
    with visiting(self, key):
        until = time.monotonic() + 60
        while self.lease.is_valid and time.monotonic() < until:
            time.sleep(0.01)
        note(key, "flagged", valid=self.lease.is_valid, lost=self.lease.lost)
        await_gate(key)
    return "went on"


def _note_loss(task: Any, lease: Any) -> None:
    note(lease.key, "told", task=task.name, lost=lease.lost)


@app.task(name="be_told", lock_on_lost=_note_loss, **BASE)
def be_told(self: Any, key: str) -> str:
    with visiting(self, key):
        await_gate(key)
    return "went on"


@app.task(name="give_way", **{**BASE, "lock_ttl": RENEWED_TTL, "lock_on_conflict": "stop"})
def give_way(self: Any, key: str) -> str:
    """Take its time to stop when a newer call asks it to."""
    with visiting(self, key):
        try:
            await_gate(key)
        except LeaseLost as loss:
            note(key, "asked", why=loss.reason)
            await_gate(key, "unwound")
            raise
    return "held"


class _SlowHandler(logging.Handler):
    """Passes records on as over a network: others run, and log, while it has its lock."""

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(0.02)


@app.task(name="log_on")
def log_on(key: str) -> None:
    """Have some record under way all the time, which the next ones wait for."""
    over = threading.Event()
    handler = _SlowHandler()

    def log() -> None:
        while not over.is_set():
            logging.getLogger("application").info("goes on")
            time.sleep(0)

    logging.getLogger().addHandler(handler)
    thread = threading.Thread(target=log)
    thread.start()
    note(key, "logging")
    try:
        await_gate(key)
    finally:
        over.set()
        thread.join()
        logging.getLogger().removeHandler(handler)
