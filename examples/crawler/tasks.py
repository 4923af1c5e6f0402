"""
A crawler that asks each host at most once a second, however many calls it gets.

Every found link leads to a call of `fetch_next.delay(host)`, usually far too many: `until_expired`
lets one call pass and drops the others until the window is over.
"""

from __future__ import annotations

import os
import re
import sqlite3
import urllib.request
from contextlib import closing

from celery import Celery

from celery_redlock import RedlockTask

WINDOW = 1.0

# The broker and the result store are those of CELERY_BROKER_URL and CELERY_RESULT_BACKEND.
app = Celery("crawler")
app.conf.update(
    redlock_nodes=os.environ["REDLOCK_NODES"].split(","),
    # Where too few nodes answer in time a task is sent without its lock, which here is one request
    # too many. Five nodes on a busy laptop may take their time.
    redlock_node_timeout=1.0,
    task_default_queue="examples.crawler",
    broker_connection_retry_on_startup=True,
)


@app.task(base=RedlockTask, lock_key="host:{host}", lock_mode="until_expired", lock_window=WINDOW)
def fetch_next(host: str) -> str | None:
    """Fetch one page of a host, and note the links on it; return the page."""
    with closing(frontier()) as pages, pages:
        waiting = "SELECT path FROM pages WHERE host = ? AND NOT fetched ORDER BY rowid"
        (path,) = pages.execute(waiting, (host,)).fetchone() or (None,)
    if path is None:
        return None
    with urllib.request.urlopen(f"http://{host}{path}", timeout=30) as page:
        links = re.findall(r'href="(/[^"]*)"', page.read().decode())
    with closing(frontier()) as pages, pages:
        pages.execute("UPDATE pages SET fetched = 1 WHERE host = ? AND path = ?", (host, path))
        found = "INSERT OR IGNORE INTO pages (host, path) VALUES (?, ?)"
        pages.executemany(found, [(host, link) for link in links])
    return str(path)


def frontier() -> sqlite3.Connection:
    """Return a connection to what is known and what is still to be fetched."""
    pages = sqlite3.connect(os.environ["CRAWLER_DATABASE"], timeout=30)
    pages.execute(
        "CREATE TABLE IF NOT EXISTS pages"
        " (host TEXT, path TEXT, fetched INTEGER DEFAULT 0, PRIMARY KEY (host, path))"
    )
    return pages
