"""`fenced_upsert` on the databases that have the statement."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from celery_redlock.errors import ConfigurationError, StaleFencingToken
from celery_redlock.fencing.sqlalchemy import fenced_upsert
from tests.fencing.sql.models import Account, Manager, Renamed, plain_table
from tests.fencing.sql.rows import add, balances


def test_a_row_that_is_not_there_is_inserted_with_its_token(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        fenced_upsert(session, Account, 5, {"id": 1, "balance": 3})

    with Session(engine) as session:
        account = session.get(Account, 1)
        assert (account.balance, account.owner, account.fencing_token) == (3, "nobody", 5)


def test_a_row_that_is_there_is_written_where_values_are_given(engine: Engine) -> None:
    add(engine, Account(id=1, owner="me", fencing_token=4))
    with Session(engine) as session, session.begin():
        fenced_upsert(session, Account, 5, {Account.id: 1, "balance": 3})

    with Session(engine) as session:
        account = session.get(Account, 1)
        assert (account.balance, account.owner, account.fencing_token) == (3, "me", 5)


def test_a_row_that_has_seen_a_newer_token_is_left_alone(engine: Engine) -> None:
    add(engine, Account(id=1, balance=1, fencing_token=6))
    with Session(engine) as session:
        with pytest.raises(StaleFencingToken) as refused:
            fenced_upsert(session, Account, 5, {"id": 1, "balance": 3})
        session.commit()

    assert (refused.value.resource, refused.value.seen) == ("accounts where id = 1", 6)
    assert balances(engine) == [1]


def test_it_is_a_single_statement(engine: Engine, statements: list[str]) -> None:
    with Session(engine) as session, session.begin():
        fenced_upsert(session, Account, 5, {"id": 1})
        fenced_upsert(session, Account, 5, {"id": 1})

    assert statements == ["INSERT", "INSERT"]


def test_an_object_that_was_loaded_shows_what_was_written(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        account = Account(id=1)
        session.add(account)
        session.flush()
        fenced_upsert(session, Account, 5, {"id": 1, "balance": 3})

        assert (account.balance, account.fencing_token) == (3, 5)


def test_a_unique_constraint_can_be_the_key(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        for token in (5, 6):
            values = {"name": "one", "size": token}
            fenced_upsert(session, Renamed, token, values, key=["name"])

        with pytest.raises(StaleFencingToken):
            fenced_upsert(session, Renamed, 4, {"name": "one", "size": 1}, key=[Renamed.name])
        assert session.scalars(select(Renamed.size)).all() == [6]


def test_a_core_table_is_written_on_a_connection(engine: Engine) -> None:
    with engine.begin() as connection:
        fenced_upsert(connection, plain_table, 5, {"id": 1, "size": 2})
        fenced_upsert(connection, plain_table, 5, {"id": 1, "size": 3})

        assert connection.scalar(select(plain_table.c.size)) == 3


@pytest.mark.parametrize(
    ("target", "values", "reason"),
    [
        (Account, {"balance": 1}, "key 'id'"),
        (Account, {"id": 1, "colour": 1}, "'colour'"),
        (Manager, {"id": 1}, "several classes"),
    ],
    ids=["without its key", "no such column", "a class that shares its table with others"],
)
def test_values_that_cannot_be_upserted_are_refused(
    engine: Engine, target: Any, values: dict[str, int], reason: str
) -> None:
    with Session(engine) as session, pytest.raises(ConfigurationError, match=reason):
        fenced_upsert(session, target, 5, values)
