"""Messages as beats send them, for a `Bench`."""

from __future__ import annotations

import time
from typing import Any

from celery_redlock.core import client_of
from celery_redlock.tasks.message.envelope import HEADER
from celery_redlock.tasks.message.node_keys import tick_dedupe_key
from celery_redlock.tasks.message.tick import Tick
from tests.support.tasks import Bench

ENTRY = "nightly"


#: Where the ticks of a test are counted from that does not look at the clock.
START = float(int(time.time()))


def tick(seconds: float = 0.0, **facts: Any) -> Tick:
    """Return the tick that is due so many seconds from the start; one number makes one tick."""
    return Tick(**{"entry": ENTRY, "due": START + seconds, **facts})


def tick_now(seconds: float = 0.0, **facts: Any) -> Tick:
    """Return a tick that is due so many seconds from now; each call makes another one."""
    return tick(time.time() - START + seconds, **facts)


def send_tick(bench: Bench, task: Any, what: Tick, *args: Any, **options: Any) -> dict[str, Any]:
    """Publish a task as a beat does that names its ticks, and take the message out of the queue."""
    request = bench.send(task, *args, **options)
    return {**request, HEADER: {**(request.get(HEADER) or {}), "tick": what.write()}}


def send_unnamed(bench: Bench, task: Any, *args: Any, **options: Any) -> dict[str, Any]:
    """Publish a task as Celery's beat does from 5.5 on."""
    return bench.send(task, *args, headers={"celery_beat_task": True}, **options)


def mark(bench: Bench, what: Tick, *, retries: int = 0) -> str:
    """Return the place of a tick's mark."""
    return tick_dedupe_key(client_of(bench.elsewhere), what, name="job", retries=retries)
