"""The app of a shop, whose tasks hold their locks until the worker ends: for pictures of the page."""

from __future__ import annotations

import os
from threading import Event

from celery import Celery

from celery_redlock import Limit, Rate, RedlockTask

app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ["SHOP_BACKEND"])
app.conf.redlock_nodes = os.environ["SHOP_NODES"].split(",")
app.conf.redlock_requeue_max = 3600


def _work() -> None:
    Event().wait()


@app.task(base=RedlockTask, name="shop.settle", lock_key="account:{account_id}")
def settle(account_id: int) -> None:
    _work()


@app.task(
    base=RedlockTask,
    name="shop.invoice",
    lock_key="invoice:{order_id}",
    lock_mode="until_executed",
)
def invoice(order_id: int) -> None:
    _work()


@app.task(base=RedlockTask, name="shop.export", lock_key=Limit("tenant:{tenant}", 3))
def export(tenant: str) -> None:
    _work()


@app.task(base=RedlockTask, name="shop.charge", lock_key=Rate("api:stripe", "100/m"))
def charge(order_id: int) -> None:
    """Call the API."""
