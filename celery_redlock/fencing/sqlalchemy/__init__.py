"""
Rows that refuse a stale writer, with SQLAlchemy 2 (Core and ORM, sync and async).

A table gets one more column, `fencing_token`, for the highest token that has written each row
(`FencedMixin` for mapped classes, `fencing_column()` for Core tables):

    class Account(FencedMixin, Base):
        __tablename__ = "accounts"
        id: Mapped[int] = mapped_column(primary_key=True)
        balance: Mapped[int]

    with Session(engine) as session, session.begin():
        fenced_update(session, Account, Account.id == 1, values={"balance": 40})

Guarantee: no call changes a row that a newer token has written, whatever the timing, and a refused
call changes nothing. A call writes with one `UPDATE … WHERE … fencing_token <= :token` in the
caller's transaction; it neither commits nor rolls back.
Limit: only these functions are fenced. After a `fenced_update` of a row, everything else that the
transaction does to the row is fenced as well, since the row stays locked until the transaction
ends; so after `fenced_claim` you may read and write the row in any way. The session reads its
objects of such rows again, so that it does not serve older values afterwards.
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
