"""What the guard meets on PostgreSQL at other isolation levels than READ COMMITTED."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from celery_redlock.errors import StaleFencingToken
from celery_redlock.fencing.sqlalchemy import fenced_update
from tests.fencing.sql.models import Account
from tests.fencing.sql.rows import balances, write

pytestmark = pytest.mark.system

FIRST, SECOND = 1, 2


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_older_than_the_newer_write_fails_as_the_level_says(
    plain: Engine, level: str
) -> None:
    engine = plain.execution_options(isolation_level=level)
    with Session(engine) as session:
        session.get(Account, FIRST)
        write(plain, Account.id == FIRST, 6, balance=6)

        with pytest.raises(OperationalError, match="could not serialize"):
            fenced_update(session, Account, Account.id == FIRST, 5, {"balance": 5})
    assert balances(plain) == [6, 0]


def test_without_transactions_several_rows_are_refused_all_the_same(plain: Engine) -> None:
    engine = plain.execution_options(isolation_level="AUTOCOMMIT")
    write(plain, Account.id == SECOND, 6, balance=6)

    with engine.connect() as connection, pytest.raises(StaleFencingToken):
        fenced_update(connection, Account, Account.id <= SECOND, 5, {"balance": 5})

    assert balances(plain) == [0, 6]
