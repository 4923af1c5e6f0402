"""What the guard meets on PostgreSQL at other isolation levels than READ COMMITTED."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from celery_redlock.errors import StaleFencingToken
from celery_redlock.fencing.sqlalchemy import fenced_update
from tests.fencing.sql.models import Account, Base

pytestmark = pytest.mark.system

FIRST, SECOND = 1, 2


@pytest.fixture
def plain(postgres: str) -> Iterator[Engine]:
    """An engine at the default level, on a database with two accounts."""
    engine = create_engine(postgres)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Account(id=FIRST), Account(id=SECOND)])
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


def balances(engine: Engine) -> list[int]:
    with Session(engine) as session:
        return list(session.scalars(select(Account.balance).order_by(Account.id)))


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_older_than_the_newer_write_fails_as_the_level_says(
    plain: Engine, level: str
) -> None:
    engine = plain.execution_options(isolation_level=level)
    with Session(engine) as session:
        session.get(Account, FIRST)
        with plain.begin() as newer:
            fenced_update(newer, Account, Account.id == FIRST, 6, {"balance": 6})

        with pytest.raises(OperationalError, match="could not serialize"):
            fenced_update(session, Account, Account.id == FIRST, 5, {"balance": 5})
    assert balances(plain) == [6, 0]


def test_without_transactions_several_rows_are_refused_all_the_same(plain: Engine) -> None:
    engine = plain.execution_options(isolation_level="AUTOCOMMIT")
    with plain.begin() as newer:
        fenced_update(newer, Account, Account.id == SECOND, 6, {"balance": 6})

    with engine.connect() as connection, pytest.raises(StaleFencingToken):
        fenced_update(connection, Account, Account.id <= SECOND, 5, {"balance": 5})

    assert balances(plain) == [0, 6]
