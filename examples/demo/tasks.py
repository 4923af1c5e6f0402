"""
One task, which reads a balance, works for a while and writes it back.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from celery import Celery

from celery_redlock import RedlockTask, StaleFencingToken
from celery_redlock.fencing import FileFence

DIRECTORY = Path(os.environ["DEMO_DIRECTORY"])
LOG = DIRECTORY / "runs.log"

#: Seconds between reading a balance and writing it.
WORK = 0.9

#: Seconds. Both are short, so that a leftover lock expires soon, and a node that has lost its data
#: votes again soon.
TTL = 3.0
MAX_TTL = 5.0

LOCK = {
    "lock_key": "account:{account}",
    "lock_ttl": TTL,
    "lock_wait": 1.0,
    # `interrupt`, the default, would mostly stop a body before its late write reaches the fence.
    "lock_on_lost": "flag",
}

# The broker and the result store are those of CELERY_BROKER_URL and CELERY_RESULT_BACKEND.
app = Celery("demo")
app.conf.update(
    redlock_nodes=os.environ["REDLOCK_NODES"].split(","),
    redlock_max_ttl=MAX_TTL,
    task_default_queue="examples.demo",
    # The broker redelivers the message of a killed process, and does so soon.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_lost_wait=0.1,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@app.task(base=RedlockTask, bind=True, **({} if "DEMO_NO_LOCK" in os.environ else LOCK))
def deposit(self: Any, payment: int, account: str) -> None:
    """Add 1 to the balance of an account."""
    run, token = uuid.uuid4().hex, self.request.fencing_token
    log("entered", run, payment=payment, account=account, pid=os.getpid(), token=token)
    fence = fence_of(account)
    # Without a lock there is no token. All writes then use the same one, and the fence accepts it.
    token = token or 1
    try:
        fence.claim(token)
        balance = int(fence.read())
        log("read", run)
        time.sleep(WORK)
        log("writing", run)
        fence.write(b"%d" % (balance + 1), token)
        log("wrote", run)
    except StaleFencingToken as stale:
        log("refused", run, seen=stale.seen)
        raise self.retry(exc=stale, countdown=0.2) from stale
    finally:
        log("left", run)


def fence_of(account: str) -> FileFence:
    """Return the fence around the file of an account."""
    return FileFence(DIRECTORY / account, fsync=False)


def log(event: str, run: str, **facts: Any) -> None:
    """Append a record of a run to the log."""
    record = json.dumps({"event": event, "run": run, "at": time.monotonic(), **facts}).encode()
    file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        # 512 bytes divide a page, and the kernel writes a page as a whole: a process that is
        # stopped or killed leaves the whole record or nothing.
        os.write(file, record.ljust(511) + b"\n")
    finally:
        os.close(file)
