"""
Transfers: a lock on both accounts, and a database that refuses a holder that has lost it.

The lock makes transfers of one account wait for each other. The database does not rely on that: it
remembers the newest fencing token of each account, and refuses a write with an older one.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import Celery
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from celery_redlock import RedlockTask, StaleFencingToken
from celery_redlock.fencing.sqlalchemy import FencedMixin, fenced_claim, fenced_update

# The broker and the result store are those of CELERY_BROKER_URL and CELERY_RESULT_BACKEND.
app = Celery("bank")
app.conf.update(
    redlock_nodes=os.environ["REDLOCK_NODES"].split(","),
    task_default_queue="examples.bank_transfer",
    # A worker acknowledges a message when its task has ended, so the broker redelivers the message
    # of a worker that dies.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)

engine = create_engine(os.environ["BANK_DATABASE"], connect_args={"timeout": 30})


class Base(DeclarativeBase):
    """The bank's tables."""


class Account(FencedMixin, Base):
    """A balance; the mixin adds the column that remembers the newest token."""

    __tablename__ = "accounts"

    name: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]


class Transfer(Base):
    """A booking, under the id of its task: a redelivered message finds the first one here."""

    __tablename__ = "transfers"

    id: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str]
    target: Mapped[str]
    amount: Mapped[int]


class Refusal(Base):
    """A refused write."""

    __tablename__ = "refusals"

    id: Mapped[int] = mapped_column(primary_key=True)
    transfer: Mapped[str]
    token: Mapped[int]
    newer: Mapped[int]


@app.task(
    base=RedlockTask,
    bind=True,
    lock_key=["account:{source}", "account:{target}"],
    lock_ttl=3.0,
    # `interrupt`, the default, would mostly stop a body that has lost its lock before it writes.
    # This example shows what happens if it does write.
    lock_on_lost="flag",
    max_retries=None,
)
def transfer(self: Any, source: str, target: str, amount: int, freeze: bool = False) -> str:
    """Move money; return `booked` or why it was not."""
    with Session(engine) as session, session.begin():
        # Before the read: from here on no earlier holder can write, so the balances stay as they
        # are read. The token is that of the lock under which this body runs.
        fenced_claim(session, Account, Account.name.in_([source, target]))
        if session.get(Transfer, self.request.id) is not None:
            return "booked before"
        read = select(Account.name, Account.balance).where(Account.name.in_([source, target]))
        balances = dict(session.execute(read).tuples().all())
    if balances[source] < amount:
        return "not enough money"

    ask_the_fraud_department(self, freeze=freeze and self.request.retries == 0)

    try:
        with Session(engine) as session, session.begin():
            for name, change in ((source, -amount), (target, amount)):
                new = {"balance": balances[name] + change}
                fenced_update(session, Account, Account.name == name, values=new)
            booked = Transfer(id=self.request.id, source=source, target=target, amount=amount)
            session.add(booked)
    except StaleFencingToken as stale:
        # The transaction above was rolled back. A retry has a new lock, and may write.
        with Session(engine) as session, session.begin():
            late = Refusal(transfer=self.request.id, token=stale.offered, newer=stale.seen)
            session.add(late)
        raise self.retry(exc=stale, countdown=0.1) from stale
    return "booked"


def ask_the_fraud_department(task: Any, *, freeze: bool) -> None:
    """Take a while, with no open transaction; or freeze, like a suspended host."""
    time.sleep(0.1)
    if freeze:
        task.update_state(state="FROZEN", meta={"pid": os.getpid()})
        os.kill(os.getpid(), signal.SIGSTOP)
