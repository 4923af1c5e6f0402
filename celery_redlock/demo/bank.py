"""
The demo's Celery app: one task, which reads a balance, takes its time, and writes it back.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from celery_redlock.demo.journal import Journal
from celery_redlock.demo.ledger import Ledger
from celery_redlock.demo.scene import MAX_TTL, TTL, WORK, Scene
from celery_redlock.errors import StaleFencingToken
from celery_redlock.tasks import RedlockTask

__all__ = ["DEPOSIT", "make_app"]

DEPOSIT = "demo.deposit"

_LOCK = {
    "lock_key": "account:{account}",
    "lock_ttl": TTL,
    "lock_wait": 1.0,
    # The demo wants to see the late write arrive at the guard; `interrupt`, the default, would
    # mostly have stopped this body before.
    "lock_on_lost": "flag",
}


def make_app(scene: Scene) -> Celery:
    """Return the worker's app."""
    app = Celery("celery-redlock-demo", broker=scene.broker, backend=scene.results)
    app.conf.update(
        redlock_nodes=list(scene.nodes),
        redlock_max_ttl=MAX_TTL,
        broker_connection_retry_on_startup=True,
        # The message of a killed process is delivered again, and soon.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_lost_wait=0.1,
        worker_prefetch_multiplier=1,
    )
    journal = Journal(scene.journal)
    ledger = Ledger(scene.accounts)

    @app.task(  # type: ignore[untyped-decorator]  # Celery is untyped
        base=RedlockTask, bind=True, name=DEPOSIT, **(_LOCK if scene.locked else {})
    )
    def deposit(self: Any, payment: int, account: str) -> None:
        token = self.request.fencing_token
        run = uuid.uuid4().hex
        who = {"payment": payment, "account": account, "pid": os.getpid(), "token": token}
        journal.note("entered", run=run, **who)
        try:
            balance = ledger.read(account, token)
            journal.note("read", run=run)
            time.sleep(WORK)
            journal.note("writing", run=run)
            ledger.write(account, balance + 1, token)
            journal.note("wrote", run=run)
        except StaleFencingToken as stale:
            journal.note("refused", run=run, seen=stale.seen)
            raise self.retry(exc=stale, countdown=0.2) from stale
        finally:
            journal.note("left", run=run)

    @worker_ready.connect(weak=False)  # type: ignore[untyped-decorator]  # Celery is untyped
    def tell_ready(**_: Any) -> None:
        journal.note("ready")

    return app
