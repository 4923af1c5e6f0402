"""
The app whose tasks wait for each other: each notes when its body began and ended.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from celery_redlock import Limit, RedlockTask
from celery_redlock.signals import task_requeued

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


@app.task(name="bench.pair", base=RedlockTask, lock_key=["{keys[0]}", "{keys[1]}"])
def pair(number: int, seconds: float, keys: tuple[str, str]) -> None:
    """Wait for two keys."""
    _hold(number, seconds)


@app.task(name="bench.key_and_slot", base=RedlockTask, lock_key=["{keys[0]}", Limit("seats", 2)])
def key_and_slot(number: int, seconds: float, keys: tuple[str]) -> None:
    """Wait for a key and one of two slots."""
    _hold(number, seconds)


@app.task(name="bench.limited", base=RedlockTask, lock_limit=5)
def limited(number: int, seconds: float) -> None:
    """Wait for one of five slots."""
    _hold(number, seconds)


@app.task(name="bench.rated", base=RedlockTask, lock_rate="20/s")
def rated(number: int, seconds: float) -> None:
    """Wait for a turn."""
    _hold(number, seconds)


@app.task(name="bench.backlogged", base=RedlockTask, lock_rate="10/s")
def backlogged(number: int, seconds: float) -> None:
    """Wait for a turn behind a backlog."""
    _hold(number, seconds)


@task_requeued.connect  # type: ignore[untyped-decorator]
def _note_requeue(sender: Any, task_id: str, **_: object) -> None:
    with open(os.environ["BENCH_TIMES"] + ".requeued", "a") as file:
        file.write(f"{sender.name} {task_id}\n")


@app.task(name="bench.unrelated")
def unrelated(number: int, seconds: float) -> None:
    """Wait for nothing."""
    _hold(number, seconds)
