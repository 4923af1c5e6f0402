"""
A body's thread is looked at again and again while garbage is collected; ends after some seconds.

Without the care that is taken, the interpreter stands still within a second.
"""

from __future__ import annotations

import gc
import threading
import time

from celery_redlock.errors import LeaseLost
from celery_redlock.tasks.interrupt.body import Body, InjectedLeaseLost
from celery_redlock.tasks.interrupt.interrupters import ThreadInterrupter

SECONDS = 2.0


class Garbage:
    """A cycle that only the collector can free, and whose end needs the interpreter's lock."""

    def __init__(self) -> None:
        self.itself = self
        self.local = threading.local()
        self.local.value = 1


def deep(frames: int) -> None:
    if frames:
        deep(frames - 1)
    else:
        time.sleep(0.0005)


def make(until: float) -> None:
    while time.monotonic() < until:
        for _ in range(20):
            Garbage()
        deep(30)


def look(until: float) -> None:
    body, reach = Body(), ThreadInterrupter()
    body.running, body.due = True, InjectedLeaseLost.into(body, LeaseLost("lost"))
    while time.monotonic() < until:
        reach.interrupt(body)  # there is no frame in which it may strike
        time.sleep(0.0001)


gc.set_threshold(200)
end = time.monotonic() + SECONDS
threads = [threading.Thread(target=work, args=(end,)) for work in (make, make, make, look)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
