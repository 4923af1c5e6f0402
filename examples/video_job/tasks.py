"""
A job that takes far longer than its lease, and what it does when the lease is lost.

The watchdog extends the lease while the body runs. If it cannot, it raises `LeaseLost` in the body
before the lease expires, so that no body runs beside its successor: clean up, and retry.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from celery import Celery

from celery_redlock import LeaseLost, RedlockTask
from celery_redlock.fencing import FileFence

LEASE = 4.0
FRAMES = 200
SECONDS_A_FRAME = 0.05

# The broker and the result store are those of CELERY_BROKER_URL and CELERY_RESULT_BACKEND.
app = Celery("videos")
app.conf.update(
    redlock_nodes=os.environ["REDLOCK_NODES"].split(","),
    # A node that has lost its data does not vote for that time. The default is a minute.
    redlock_max_ttl=6.0,
    # Five nodes on a busy laptop may take their time.
    redlock_node_timeout=1.0,
    task_default_queue="examples.video_job",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@app.task(
    base=RedlockTask,
    bind=True,
    lock_key="video:{video}",
    lock_ttl=LEASE,
    lock_on_lost="interrupt",  # the default: LeaseLost is raised in the body, wherever it is
    max_retries=None,
)
def transcode(self: Any, video: str) -> int:
    """Make a film of many frames; return the fencing token of the lock under which it was made."""
    token = self.request.fencing_token
    # Of its own: should two bodies overlap after all, neither writes into the other's frames.
    frames = directory() / f"{video}.{token}.frames"
    frames.mkdir()
    try:
        for number in range(FRAMES):
            time.sleep(SECONDS_A_FRAME)
            (frames / f"{number:04}").write_text(f"frame {number}\n")
        film = "".join(frame.read_text() for frame in sorted(frames.iterdir()))
        # Refuses a body that has slept through everything, even through the loss of its lease.
        FileFence(directory() / f"{video}.film").write(film.encode())
    except LeaseLost as lost:
        # Somebody else may have the lock in a moment. The message comes back, and starts again
        # when it gets the lock.
        raise self.retry(exc=lost, countdown=1.0) from lost
    finally:
        shutil.rmtree(frames)
    return int(token)


def directory() -> Path:
    """Return where frames and films are kept."""
    return Path(os.environ["VIDEO_DIRECTORY"])
