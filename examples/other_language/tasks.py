"""
A task that sells from a stock from which a service in another language sells, too.

Neither knows the other. They agree on the nodes and on the name of a lock.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

from celery_redlock import RedlockTask

# The broker and the result store are those of CELERY_BROKER_URL and CELERY_RESULT_BACKEND.
app = Celery("shop")
app.conf.update(
    redlock_nodes=os.environ["REDLOCK_NODES"].split(","),
    redlock_key_prefix="redlock:",  # the default; others have to put it before the key
    # Five nodes on a busy laptop may take their time.
    redlock_node_timeout=1.0,
    task_default_queue="examples.other_language",
    task_track_started=True,
    broker_connection_retry_on_startup=True,
)


@app.task(base=RedlockTask, lock_key="stock:{item}", lock_wait=30.0)
def sell(item: str) -> int:
    """Sell one, and return how many are left."""
    shop = Path(os.environ["SHOP_DIRECTORY"])
    # Fails if the file exists: then another process is selling at this moment.
    (shop / "inside").mkdir()
    left = int((shop / "stock").read_text()) - 1
    time.sleep(0.01)
    (shop / "stock").write_text(str(left))
    (shop / "inside").rmdir()
    while (shop / "closed").exists():
        time.sleep(0.05)
    return left
