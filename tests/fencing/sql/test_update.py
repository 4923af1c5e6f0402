"""`fenced_update` and `fenced_claim`: what is written, refused, and seen of it by callers."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, and_, insert, select
from sqlalchemy.orm import Session, aliased, scoped_session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from celery_redlock.errors import ConfigurationError, FencedResourceMissing, StaleFencingToken
from celery_redlock.fencing.sqlalchemy import fenced_claim, fenced_update
from tests.fencing.sql.models import (
    Account,
    Employee,
    Manager,
    Old,
    Renamed,
    Seat,
    VersionedValue,
    plain_table,
)
from tests.fencing.sql.rows import add, balances, stored, write


@pytest.fixture
def accounts(engine: Engine) -> Engine:
    """Three accounts; the tokens that they have seen are their numbers times ten."""
    add(engine, *(Account(id=n, balance=100, fencing_token=n * 10) for n in (1, 2, 3)))
    return engine


@pytest.mark.parametrize(
    ("where", "resource"),
    [
        (Account.id == 99, "accounts where id = 99"),
        (and_(Account.id == 1, Account.balance < 0), "accounts where id = 1"),
    ],
    ids=["another key", "the key and more"],
)
def test_a_row_that_is_not_there_is_another_error(
    accounts: Engine, where: Any, resource: str
) -> None:
    with pytest.raises(FencedResourceMissing) as missing:
        write(accounts, where, 11, balance=5)

    assert missing.value.resource == resource


def test_a_message_about_several_rows_keeps_the_condition_values_to_itself(
    accounts: Engine,
) -> None:
    with pytest.raises(FencedResourceMissing) as missing:
        write(accounts, Account.owner == "a secret", 25, balance=0)

    assert "accounts.owner" in str(missing.value)
    assert "secret" not in str(missing.value)


def test_one_row_by_its_key_costs_a_single_statement(
    accounts: Engine, statements: list[str]
) -> None:
    write(accounts, Account.id == 1, 11, balance=5)

    assert statements == ["UPDATE"]


def test_nothing_is_committed_by_the_guard(accounts: Engine) -> None:
    with Session(accounts) as session:
        fenced_update(session, Account, Account.id == 1, 11, {"balance": 5})
        session.rollback()

    assert stored(accounts) == (100, 10)


def test_sql_expressions_are_values(accounts: Engine) -> None:
    with Session(accounts) as session, session.begin():
        values = {Account.balance: Account.balance - 30}
        fenced_update(session, Account, Account.id == 1, 11, values)

    assert balances(accounts) == [70, 100, 100]


def test_several_rows_are_written_together(accounts: Engine) -> None:
    assert write(accounts, Account.id.in_([1, 2]), 20, balance=0) == 2
    assert balances(accounts) == [0, 0, 100]


OTHER = aliased(Account)


@pytest.mark.parametrize(
    "where",
    [Account.id <= 3, and_(OTHER.id == 1, Account.balance == OTHER.balance)],
    ids=["a range", "the key of an alias, which names no row"],
)
def test_one_newer_row_among_several_refuses_them_all(accounts: Engine, where: Any) -> None:
    with Session(accounts) as session:
        with pytest.raises(StaleFencingToken) as refused:
            fenced_update(session, Account, where, 25, {"balance": 0})
        # A caller who keeps the transaction all the same.
        session.commit()

    assert refused.value.seen == 30
    assert balances(accounts) == [100, 100, 100]


def test_a_write_that_takes_rows_out_of_the_condition_is_complete(accounts: Engine) -> None:
    assert write(accounts, Account.balance == 100, 30, balance=0) == 3


def test_objects_that_were_loaded_show_what_was_written(accounts: Engine) -> None:
    with Session(accounts) as session, session.begin():
        account = session.get(Account, 1)
        values = {"balance": Account.balance + 1, "owner": "me"}
        fenced_update(session, Account, Account.id == 1, 11, values)

        assert (account.balance, account.owner, account.fencing_token) == (101, "me", 11)


def test_objects_that_were_loaded_long_ago_do_not_decide(accounts: Engine) -> None:
    with Session(accounts, expire_on_commit=False) as session:
        account = session.get(Account, 1)
        session.commit()
        write(accounts, Account.id == 1, 15, balance=5)

        with pytest.raises(StaleFencingToken):
            fenced_update(session, Account, Account.id == 1, 14, {"balance": 6})
        assert account.balance == 100


def test_pending_changes_of_a_stale_holder_are_not_flushed_ahead_of_the_guard(
    accounts: Engine,
) -> None:
    with Session(accounts) as session:
        session.get(Account, 2).owner = "somebody stale"
        with pytest.raises(StaleFencingToken):
            fenced_update(session, Account, Account.id == 2, 19, {"balance": 5})
        assert session.dirty


def test_changes_after_a_claim_are_ordinary_changes(accounts: Engine) -> None:
    with Session(accounts) as session, session.begin():
        assert fenced_claim(session, Account, Account.id == 1, 11) == 1
        session.get(Account, 1).balance -= 40

    assert stored(accounts) == (60, 11)


@pytest.fixture
def seats(engine: Engine) -> Engine:
    """Two seats in a row; the tokens that they have seen are their numbers."""
    add(engine, *(Seat(row=1, number=n, fencing_token=n) for n in (1, 2)))
    return engine


def test_a_composite_key_names_one_row(seats: Engine) -> None:
    where = and_(Seat.row == 1, Seat.number == 2)

    with Session(seats) as session, session.begin():
        fenced_update(session, Seat, where, 5, {"guest": "B"})
        with pytest.raises(StaleFencingToken) as refused:
            fenced_update(session, Seat, where, 4, {"guest": "A"})

    assert refused.value.resource == "seats where row = 1 and number = 2"


def test_part_of_a_composite_key_names_several_rows(seats: Engine) -> None:
    with Session(seats) as session, pytest.raises(StaleFencingToken):
        fenced_update(session, Seat, Seat.row == 1, 1, {"guest": "A"})


def test_attributes_may_be_named_unlike_their_columns(engine: Engine) -> None:
    add(engine, Renamed(id=1, name="one"))
    with Session(engine) as session, session.begin():
        fenced_update(session, Renamed, Renamed.id == 1, 5, {"size": 3})
        assert session.get(Renamed, 1).size == 3


def test_a_core_table_is_guarded_without_the_orm(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(insert(plain_table).values(id=1, size=1))
        fenced_update(connection, plain_table, plain_table.c.id == 1, 5, {"size": 2})
        with pytest.raises(StaleFencingToken):
            fenced_update(connection, plain_table, plain_table.c.id == 1, 4, {"size": 3})
        assert connection.scalar(select(plain_table.c.size)) == 2


def test_a_subclass_in_the_same_table_does_not_reach_its_siblings(engine: Engine) -> None:
    add(engine, Employee(id=1), Manager(id=2))
    with Session(engine) as session, session.begin():
        fenced_update(session, Manager, Manager.id == 2, 5, {"salary": 3})

    with Session(engine) as session, pytest.raises(FencedResourceMissing):
        fenced_update(session, Manager, Manager.id == 1, 5, {"salary": 3})


def test_rows_of_siblings_in_the_same_table_do_not_refuse_a_subclass(engine: Engine) -> None:
    add(engine, Employee(id=1, fencing_token=9), Manager(id=2), Manager(id=3))

    with Session(engine) as session, session.begin():
        assert fenced_update(session, Manager, Manager.salary == 0, 5, {"salary": 3}) == 2


def test_a_scoped_session_is_a_session(accounts: Engine) -> None:
    session = scoped_session(sessionmaker(accounts))
    fenced_update(session, Account, Account.id == 1, 11, {"balance": 5})
    session.commit()
    session.remove()

    assert balances(accounts)[0] == 5


def test_a_version_column_does_its_part_beside_the_fence(engine: Engine) -> None:
    add(engine, VersionedValue(id=1))
    with Session(engine) as reader:
        row = reader.get(VersionedValue, 1)
        with Session(engine) as session, session.begin():
            fenced_claim(session, VersionedValue, VersionedValue.id == 1, 5)
            session.get(VersionedValue, 1).size = 3
        row.size = 4

        with pytest.raises(StaleDataError):
            reader.commit()


def test_null_counts_as_unwritten_where_the_model_allows_it(engine: Engine) -> None:
    add(engine, Old(id=1), Old(id=2))
    with Session(engine) as session, session.begin():
        fenced_update(session, Old, Old.id == 1, 5, {"size": 3})
        fenced_update(session, Old, Old.id <= 2, 6, {"size": 4})
        with pytest.raises(StaleFencingToken):
            fenced_update(session, Old, Old.id == 1, 5, {"size": 3})


@pytest.mark.parametrize(
    "where",
    [plain_table.c.id == 1, plain_table.c.id > 0],
    ids=["one row by its key", "several rows"],
)
def test_null_where_the_model_allows_none_refuses_all_rows(engine: Engine, where: Any) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE plain_rows")
        connection.exec_driver_sql(
            "CREATE TABLE plain_rows (id INTEGER PRIMARY KEY, size INTEGER, fencing_token BIGINT)"
        )
        connection.exec_driver_sql("INSERT INTO plain_rows VALUES (1, 0, NULL), (2, 0, 0)")
    with engine.begin() as connection:
        with pytest.raises(ConfigurationError, match="NULL"):
            fenced_update(connection, plain_table, where, 5, {"size": 1})

        assert connection.scalars(select(plain_table.c.size)).all() == [0, 0]
