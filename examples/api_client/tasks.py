"""
Calls of an API whose contract allows three at once, and ten in a second, for all of its client.

Any number of workers on any number of hosts may run the task: they share the limit and the rate.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from typing import Any

from celery import Celery
from celery.signals import task_prerun

from celery_redlock import RedlockTask

AT_ONCE = 3
A_SECOND = 10

# The broker and the result store are those of CELERY_BROKER_URL and CELERY_RESULT_BACKEND.
app = Celery("api_client")
app.conf.update(
    redlock_nodes=os.environ["REDLOCK_NODES"].split(","),
    # Five nodes on a busy laptop may take their time.
    redlock_node_timeout=1.0,
    task_default_queue="examples.api_client",
    broker_connection_retry_on_startup=True,
)


@app.task(base=RedlockTask, bind=True, lock_limit=AT_ONCE, lock_rate=f"{A_SECOND}/s")
def call(self: Any, path: str) -> str:
    """Call the API, and return its answer."""
    note(worker=self.request.hostname, asked=self.request.asked, began=time.monotonic())
    # An error, such as 429 Too Many Requests, fails the task.
    url = os.environ["API_URL"] + path
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own
        return str(answer.read().decode())


@task_prerun.connect
def note_when_it_asks(task: Any, **_: Any) -> None:
    """Keep the time before a task asks for its lock: the grant is between this and the body."""
    task.request.asked = time.monotonic()


def note(**facts: Any) -> None:
    """Write a line into the client's log."""
    with open(os.environ["CLIENT_LOG"], "a") as log:
        log.write(json.dumps(facts) + "\n")
