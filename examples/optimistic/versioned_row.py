"""
Optimistic locking of a row: SQLAlchemy's `version_id_col`.

Every flush becomes `UPDATE … SET version = :new WHERE id = :id AND version = :read`. If another
write came after the read, the statement matches no row, raises `StaleDataError`, and the caller
starts again.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import ClassVar

from sqlalchemy import BigInteger, Engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.orm.exc import StaleDataError


class Base(DeclarativeBase):
    """The tables of this example."""


class VersionedAccount(Base):
    """An account that counts its changes."""

    __tablename__ = "versioned_accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int] = mapped_column(BigInteger, default=0)
    version: Mapped[int] = mapped_column()

    __mapper_args__: ClassVar = {"version_id_col": version}


def deposit(
    engine: Engine, number: int, amount: int, think: Callable[[], object] = lambda: None
) -> int:
    """
    Add to a balance; return how often it had to be done again.

    Args:
        engine: the database.
        number: the account's id.
        amount: what to add.
        think: the work between reading and writing; it is done again as well.
    """
    for again in itertools.count():
        try:
            # Expiring at commit would load the version anew, and with it somebody else's write
            # that this has never seen.
            with Session(engine, expire_on_commit=False) as session:
                named = select(VersionedAccount).where(VersionedAccount.id == number)
                account = session.scalars(named).one()
                # Reading is over: no transaction stays open while this thinks.
                session.commit()
                think()
                account.balance += amount
                session.commit()
        except StaleDataError:
            back_off(again)
        else:
            return again
    raise AssertionError("unreachable")


def back_off(again: int) -> None:
    """Wait at random and longer each time, so that contenders that met do not meet again."""
    time.sleep(random.uniform(0, min(0.25, 0.01 * 2**again)))  # noqa: S311 - no secret
