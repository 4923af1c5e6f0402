"""
A report that is written every night, by several beats of which any may fail.

The clock is sped up: a night is two seconds. In a project of yours the schedule would be
`crontab(hour=4, minute=0)`, and the rest as it is here.
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from celery import Celery

from celery_redlock import RedlockTask

NIGHT = 2.0

# The broker and the result store are those of CELERY_BROKER_URL and CELERY_RESULT_BACKEND.
app = Celery("reports")
app.conf.update(
    redlock_nodes=os.environ["REDLOCK_NODES"].split(","),
    # Far shorter than usual, so that a new leader takes over soon.
    redlock_beat_ttl=4.0,
    # Five nodes on a busy laptop may take their time.
    redlock_node_timeout=1.0,
    task_default_queue="examples.nightly_report",
    broker_connection_retry_on_startup=True,
    beat_schedule={
        "nightly": {"task": "examples.nightly_report.tasks.write_report", "schedule": NIGHT}
    },
)


@app.task(
    base=RedlockTask,
    bind=True,
    lock_key="report",
    lock_on_conflict="skip",  # no report begins while another one is being written
    lock_starting_deadline=60.0,  # a worker skips a tick that it receives later than this
    lock_skip_result="skipped",
)
def write_report(self: Any) -> str:
    """Write the report of one night."""
    reports = Path(os.environ["REPORTS"])
    tick = self.request.tick
    # Fails if the file exists: then another report is being written at this moment.
    (reports / "inside").mkdir()
    try:
        while (reports / "slow").exists():
            time.sleep(0.05)
        with (reports / "written").open("a") as written:
            written.write(f"{tick.due} {tick.token}\n")
    finally:
        (reports / "inside").rmdir()
    return f"report of {datetime.fromtimestamp(tick.due):%H:%M:%S}"
