"""The app of a storm: one task in four kinds, whose bodies note that they ran in a file."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from celery_redlock import RedlockTask

app = Celery("storm", broker=os.environ["STORM_BROKER"])
app.conf.update(
    redlock_nodes=os.environ["STORM_NODES"].split(","),
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 10, "socket_timeout": 5},
    task_ignore_result=True,
    worker_prefetch_multiplier=4,
)


def note(number: int) -> None:
    """Take a moment, and note that this message's body ran."""
    time.sleep(0.005)
    with open(os.environ["STORM_RAN"], "a") as ran:  # one short line: appended whole
        ran.write(f"{number}\n")


COMMON: dict[str, Any] = {"acks_late": os.environ["STORM_LATE"] == "1"}
LOCKED = {**COMMON, "base": RedlockTask, "lock_key": "{number}", "lock_ttl": 5}
WAITING = {**LOCKED, "lock_key": lambda number: f"one of {number % 4}"}
KINDS = {
    "plain": app.task(note, name="plain", **COMMON),
    "locked": app.task(note, name="locked", **LOCKED),
    "waiting": app.task(note, name="waiting", **WAITING),
    "unique": app.task(note, name="unique", lock_mode="until_executed", **LOCKED),
}
