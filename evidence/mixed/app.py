"""The app of a fleet of two versions: its task notes who ran it, and from when to when."""

from __future__ import annotations

import os
import time

from celery import Celery

import celery_redlock
from celery_redlock import RedlockTask

#: Where the version is that this process was told to run.
_VERSION = os.environ["MIXED_VERSION"]
assert celery_redlock.__file__.startswith(_VERSION), f"{celery_redlock.__file__}, not {_VERSION}"

app = Celery("mixed", broker=os.environ["MIXED_BROKER"])
app.conf.update(
    redlock_nodes=os.environ["MIXED_NODES"].split(","),
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
)


@app.task(base=RedlockTask, name="mixed.hold", lock_key="one of {group}", lock_ttl=10)
def hold(number: int, group: int) -> None:
    """Hold the lock for a moment."""
    begun = time.monotonic()
    time.sleep(0.05)
    # One short line is appended whole, whichever process writes it.
    with open(os.environ["MIXED_NOTES"], "a") as notes:
        notes.write(f"{os.environ['MIXED_WHO']} {number} {group} {begun} {time.monotonic()}\n")
