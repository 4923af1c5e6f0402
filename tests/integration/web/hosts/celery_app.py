"""The Celery app of both applications; its nodes come from the environment."""

from __future__ import annotations

import json
import os

from celery import Celery

from celery_redlock import RedlockTask

app = Celery("shop", broker="memory://", set_as_current=False)
app.conf.redlock_nodes = json.loads(os.environ["HOST_NODES"])


@app.task(base=RedlockTask, name="shop.settle", lock_key="account:{number}")
def settle(number: int) -> None:
    """Have a name on the page."""
