"""
The app whose tasks wait for each other: each notes when its body began and ended.
"""

from __future__ import annotations

import os
import time

from celery import Celery

from celery_redlock import RedlockTask

app = Celery("waiting", broker=os.environ["BENCH_BROKER"], set_as_current=False)
app.conf.update(
    redlock_nodes=os.environ["BENCH_NODES"].split(","),
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
)
if wait := os.environ["BENCH_WAIT"]:
    app.conf.redlock_wait = float(wait)


def _hold(number: int, seconds: float) -> None:
    begun = time.monotonic()
    time.sleep(seconds)
    # One line at a time is written whole, whichever process writes it.
    with open(os.environ["BENCH_TIMES"], "a") as file:
        file.write(f"{number} {begun} {time.monotonic()}\n")


@app.task(name="bench.hot", base=RedlockTask, lock_key="hot")
def hot(number: int, seconds: float) -> None:
    """Wait for the one key."""
    _hold(number, seconds)


@app.task(name="bench.hot_fair", base=RedlockTask, lock_key="hot", lock_fair=True)
def hot_fair(number: int, seconds: float) -> None:
    """Wait for the one key in order."""
    _hold(number, seconds)


@app.task(name="bench.unrelated")
def unrelated(number: int, seconds: float) -> None:
    """Wait for nothing."""
    _hold(number, seconds)
