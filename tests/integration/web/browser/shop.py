"""A shop whose tasks keep their locks until the worker ends: something to take pictures of."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from threading import Event
from typing import Any

from celery import Celery

from celery_redlock import Limit, Rate, RedlockTask

LATER = "later"


def make_shop(conf: Mapping[str, Any]) -> Celery:
    """Return the shop's app; no worker takes what is sent to the queue `LATER`."""
    app = Celery("shop", set_as_current=False)
    app.conf.update(conf, result_backend=conf["broker_url"])

    def work(number: int) -> None:
        Event().wait()

    def call(number: int) -> None:
        """End at once."""

    for body, name, options in (
        (work, "shop.settle", {"lock_key": "account:{number}"}),
        (work, "shop.export", {"lock_key": Limit("tenant:{number}", 3)}),
        (call, "shop.charge", {"lock_key": Rate("api:stripe", "100/h")}),
        (call, "shop.invoice", {"lock_key": "invoice:{number}", "lock_mode": "until_executed"}),
    ):
        app.task(base=RedlockTask, name=name, shared=False, **options)(body)
    return app


if __name__ == "__main__":
    conf, name = sys.argv[1:]
    make_shop(json.loads(conf)).worker_main(
        [
            *("worker", "--pool=threads", "--concurrency=6", f"--hostname={name}"),
            *("--loglevel=INFO", "--without-mingle", "--without-gossip", "--without-heartbeat"),
        ]
    )
