"""Accounts in a database, written and read without a session of the test's own."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from celery_redlock.fencing.sqlalchemy import fenced_update
from tests.fencing.sql.models import Account, Base


def add(engine: Engine, *rows: Base) -> None:
    with Session(engine) as session, session.begin():
        session.add_all(rows)


def write(engine: Engine, where: Any, token: int, **values: Any) -> int:
    """Write the accounts for which a condition holds, in a transaction of its own."""
    with Session(engine) as session, session.begin():
        return fenced_update(session, Account, where, token, values)


def balances(engine: Engine) -> list[int]:
    """Return the balances of all accounts, in the order of their numbers."""
    with Session(engine) as session:
        return list(session.scalars(select(Account.balance).order_by(Account.id)))


def stored(engine: Engine, number: int = 1) -> tuple[int, int]:
    """Return the balance of an account, and the token that it has seen."""
    with Session(engine) as session:
        account = session.get(Account, number)
        return account.balance, account.fencing_token
