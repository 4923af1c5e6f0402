"""
A crawler that has at most two requests to a host at once, and begins at most five in a second.

Every found link is a task. None is dropped: those beyond the limit or the rate of their host wait
in the queue, and those of other hosts run meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from typing import Any

from celery import Celery
from celery.signals import task_prerun

from celery_redlock import Limit, Rate, RedlockTask

AT_ONCE = 2
A_SECOND = 5

# The broker and the result store are those of CELERY_BROKER_URL and CELERY_RESULT_BACKEND.
app = Celery("polite_crawler")
app.conf.update(
    redlock_nodes=os.environ["REDLOCK_NODES"].split(","),
    # Five nodes on a busy laptop may take their time.
    redlock_node_timeout=1.0,
    task_default_queue="examples.polite_crawler",
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
)


@app.task(
    base=RedlockTask,
    bind=True,
    lock_key=[Limit("host:{host}", AT_ONCE), Rate("host:{host}", f"{A_SECOND}/s")],
)
def fetch(self: Any, host: str, path: str) -> None:
    """Fetch a page, and send a task for each link on it."""
    note(host=host, path=path, asked=self.request.asked, began=time.monotonic())
    with urllib.request.urlopen(f"http://{host}{path}", timeout=30) as page:
        links = re.findall(r'href="(/[^"]*)"', page.read().decode())
    for link in links:
        fetch.delay(host, link)


@task_prerun.connect
def note_when_it_asks(task: Any, **_: Any) -> None:
    """Keep the time before a task asks for its lock: the grant is between this and the body."""
    task.request.asked = time.monotonic()


def note(**facts: Any) -> None:
    """Write a line into the crawler's log."""
    with open(os.environ["CRAWLER_LOG"], "a") as log:
        log.write(json.dumps(facts) + "\n")
