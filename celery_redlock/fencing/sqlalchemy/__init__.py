"""
Rows that refuse a stale writer, through SQLAlchemy 2 (Core and ORM, sync and async).

A table gets one more column, `fencing_token`, which remembers the highest token that has written
each row (`FencedMixin` for mapped classes, `fencing_column()` for Core tables):

    class Account(FencedMixin, Base):
        __tablename__ = "accounts"
        id: Mapped[int] = mapped_column(primary_key=True)
        balance: Mapped[int]

    with Session(engine) as session, session.begin():
        fenced_update(session, Account, Account.id == 1, values={"balance": 40})

Guarantee: a row is never changed by a call with a token below one that has written it, whatever
the timing, and a call that was refused has changed nothing. It is one `UPDATE … WHERE …
fencing_token <= :token` in the caller's transaction; it neither commits nor rolls back.
Limit: only writes that go through here are guarded. What a transaction does to a row *after* a
`fenced_update` of that row is guarded as well, since the row stays locked until the transaction
ends; so `fenced_claim` makes a row safe to be read, worked on and written in any way. Objects that
the session had loaded of such rows are read again, so that nothing older is served afterwards.
"""

from __future__ import annotations

from celery_redlock.fencing.sqlalchemy.columns import FencedMixin, fencing_column
from celery_redlock.fencing.sqlalchemy.update import (
    fenced_claim,
    fenced_claim_async,
    fenced_update,
    fenced_update_async,
)
from celery_redlock.fencing.sqlalchemy.upsert import fenced_upsert, fenced_upsert_async

__all__ = [
    "FencedMixin",
    "fenced_claim",
    "fenced_claim_async",
    "fenced_update",
    "fenced_update_async",
    "fenced_upsert",
    "fenced_upsert_async",
    "fencing_column",
]
