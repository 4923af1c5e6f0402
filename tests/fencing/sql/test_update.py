"""`fenced_update`: what is written, what is refused, and what callers see of it."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, and_, event, insert, select
from sqlalchemy.orm import Session, aliased, scoped_session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from celery_redlock.errors import (
    ConfigurationError,
    FencedResourceMissing,
    StaleFencingToken,
)
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


@pytest.fixture
def accounts(engine: Engine) -> list[int]:
    """Three accounts; the tokens that they have seen are their numbers times ten."""
    with Session(engine) as session, session.begin():
        session.add_all([Account(id=n, balance=100, fencing_token=n * 10) for n in (1, 2, 3)])
    return [1, 2, 3]


def balances(engine: Engine) -> dict[int, int]:
    with Session(engine) as session:
        return {row.id: row.balance for row in session.execute(select(Account.id, Account.balance))}


def token_of(engine: Engine, number: int) -> int:
    with Session(engine) as session:
        return session.get(Account, number).fencing_token


def test_a_newer_token_writes_and_is_remembered(engine: Engine, accounts: list[int]) -> None:
    with Session(engine) as session, session.begin():
        assert fenced_update(session, Account, Account.id == 1, 11, {"balance": 5}) == 1

    assert balances(engine)[1] == 5
    assert token_of(engine, 1) == 11


def test_the_same_token_writes_again_and_again(engine: Engine, accounts: list[int]) -> None:
    for balance in (5, 6, 7):
        with Session(engine) as session, session.begin():
            fenced_update(session, Account, Account.id == 1, 11, {"balance": balance})

    assert balances(engine)[1] == 7


def test_an_older_token_is_refused_and_changes_nothing(engine: Engine, accounts: list[int]) -> None:
    with Session(engine) as session:
        with pytest.raises(StaleFencingToken) as refused:
            fenced_update(session, Account, Account.id == 2, 19, {"balance": 5})
        # A caller who keeps the transaction all the same.
        session.commit()

    assert (refused.value.seen, refused.value.offered) == (20, 19)
    assert refused.value.resource == "accounts where id = 2"
    assert balances(engine)[2] == 100
    assert token_of(engine, 2) == 20


def test_a_row_that_is_not_there_is_another_error(engine: Engine, accounts: list[int]) -> None:
    with Session(engine) as session, pytest.raises(FencedResourceMissing) as missing:
        fenced_update(session, Account, Account.id == 99, 11, {"balance": 5})

    assert missing.value.resource == "accounts where id = 99"


def test_a_row_that_matches_in_nothing_but_its_key_is_missing_too(
    engine: Engine, accounts: list[int]
) -> None:
    where = and_(Account.id == 1, Account.balance < 0)

    with Session(engine) as session, pytest.raises(FencedResourceMissing):
        fenced_update(session, Account, where, 11, {"balance": 5})


def test_one_row_by_its_key_costs_a_single_statement(engine: Engine, accounts: list[int]) -> None:
    statements: list[str] = []
    event.listen(
        engine, "before_cursor_execute", lambda *args: statements.append(args[2].split()[0])
    )

    with engine.begin() as connection:
        fenced_update(connection, Account, Account.id == 1, 11, {"balance": 5})

    assert statements == ["UPDATE"]


def test_nothing_is_committed_by_the_guard(engine: Engine, accounts: list[int]) -> None:
    with Session(engine) as session:
        fenced_update(session, Account, Account.id == 1, 11, {"balance": 5})
        session.rollback()

    assert balances(engine)[1] == 100
    assert token_of(engine, 1) == 10


def test_sql_expressions_are_values(engine: Engine, accounts: list[int]) -> None:
    with Session(engine) as session, session.begin():
        values = {Account.balance: Account.balance - 30}
        fenced_update(session, Account, Account.id == 1, 11, values)

    assert balances(engine)[1] == 70


def test_several_rows_are_written_together(engine: Engine, accounts: list[int]) -> None:
    with Session(engine) as session, session.begin():
        assert fenced_update(session, Account, Account.id.in_([1, 2]), 20, {"balance": 0}) == 2

    assert balances(engine) == {1: 0, 2: 0, 3: 100}


def test_one_newer_row_among_several_refuses_them_all(engine: Engine, accounts: list[int]) -> None:
    with Session(engine) as session:
        with pytest.raises(StaleFencingToken) as refused:
            fenced_update(session, Account, Account.id <= 3, 25, {"balance": 0})
        # A caller who keeps the transaction all the same.
        session.commit()

    assert refused.value.seen == 30
    assert balances(engine) == {1: 100, 2: 100, 3: 100}


def test_a_write_that_takes_rows_out_of_the_condition_is_complete(
    engine: Engine, accounts: list[int]
) -> None:
    with Session(engine) as session, session.begin():
        hit = fenced_update(session, Account, Account.balance == 100, 30, {"balance": 0})

    assert hit == 3


def test_no_row_among_several_is_missing(engine: Engine, accounts: list[int]) -> None:
    with Session(engine) as session, pytest.raises(FencedResourceMissing):
        fenced_update(session, Account, Account.balance < 0, 25, {"balance": 0})


def test_a_message_about_several_rows_keeps_the_condition_values_to_itself(
    engine: Engine, accounts: list[int]
) -> None:
    with Session(engine) as session, pytest.raises(FencedResourceMissing) as missing:
        fenced_update(session, Account, Account.owner == "a secret", 25, {"balance": 0})

    assert "accounts.owner" in str(missing.value)
    assert "secret" not in str(missing.value)


def test_objects_that_were_loaded_show_what_was_written(
    engine: Engine, accounts: list[int]
) -> None:
    with Session(engine) as session, session.begin():
        account = session.get(Account, 1)
        fenced_update(
            session, Account, Account.id == 1, 11, {"balance": Account.balance + 1, "owner": "me"}
        )

        assert (account.balance, account.owner, account.fencing_token) == (101, "me", 11)


def test_objects_that_were_loaded_long_ago_do_not_decide(
    engine: Engine, accounts: list[int]
) -> None:
    with Session(engine, expire_on_commit=False) as session:
        account = session.get(Account, 1)
        session.commit()
        with engine.begin() as other:
            fenced_update(other, Account, Account.id == 1, 15, {"balance": 5})

        with pytest.raises(StaleFencingToken):
            fenced_update(session, Account, Account.id == 1, 14, {"balance": 6})
        assert account.balance == 100


def test_pending_changes_of_a_stale_holder_are_not_flushed_ahead_of_the_guard(
    engine: Engine, accounts: list[int]
) -> None:
    with Session(engine) as session:
        session.get(Account, 2).owner = "somebody stale"
        with pytest.raises(StaleFencingToken):
            fenced_update(session, Account, Account.id == 2, 19, {"balance": 5})
        assert session.dirty


def test_changes_after_a_claim_are_ordinary_changes(engine: Engine, accounts: list[int]) -> None:
    with Session(engine) as session, session.begin():
        assert fenced_claim(session, Account, Account.id == 1, 11) == 1
        session.get(Account, 1).balance -= 40

    assert balances(engine)[1] == 60
    assert token_of(engine, 1) == 11


def test_a_claim_with_an_old_token_is_refused(engine: Engine, accounts: list[int]) -> None:
    with Session(engine) as session, pytest.raises(StaleFencingToken):
        fenced_claim(session, Account, Account.id == 2, 19)


def test_a_claim_shuts_the_superseded_holder_out_before_anything_is_written(
    engine: Engine, accounts: list[int]
) -> None:
    with Session(engine) as newer, newer.begin():
        fenced_claim(newer, Account, Account.id == 1, 12)

    with Session(engine) as older, pytest.raises(StaleFencingToken):
        fenced_update(older, Account, Account.id == 1, 11, {"balance": 5})


def test_a_composite_key_names_one_row(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Seat(row=1, number=n, fencing_token=n) for n in (1, 2)])
    where = and_(Seat.row == 1, Seat.number == 2)

    with Session(engine) as session, session.begin():
        fenced_update(session, Seat, where, 5, {"guest": "B"})
        with pytest.raises(StaleFencingToken) as refused:
            fenced_update(session, Seat, where, 4, {"guest": "A"})

    assert refused.value.resource == "seats where row = 1 and number = 2"


def test_part_of_a_composite_key_names_several_rows(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Seat(row=1, number=n, fencing_token=n) for n in (1, 2)])

    with Session(engine) as session, pytest.raises(StaleFencingToken):
        fenced_update(session, Seat, Seat.row == 1, 1, {"guest": "A"})


def test_attributes_may_be_named_unlike_their_columns(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add(Renamed(id=1, name="one"))
    with Session(engine) as session, session.begin():
        fenced_update(session, Renamed, Renamed.id == 1, 5, {"size": 3})
        assert session.get(Renamed, 1).size == 3


def test_a_core_table_is_guarded_without_the_orm(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(insert(plain_table).values(id=1, size=1))
    with engine.begin() as connection:
        fenced_update(connection, plain_table, plain_table.c.id == 1, 5, {"size": 2})

    with engine.begin() as connection, pytest.raises(StaleFencingToken):
        fenced_update(connection, plain_table, plain_table.c.id == 1, 4, {"size": 3})
    with engine.connect() as connection:
        assert connection.scalar(select(plain_table.c.size)) == 2


def test_a_subclass_in_the_same_table_does_not_reach_its_siblings(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Employee(id=1), Manager(id=2)])
    with Session(engine) as session, session.begin():
        fenced_update(session, Manager, Manager.id == 2, 5, {"salary": 3})

    with Session(engine) as session, pytest.raises(FencedResourceMissing):
        fenced_update(session, Manager, Manager.id == 1, 5, {"salary": 3})


def test_rows_of_siblings_in_the_same_table_do_not_refuse_a_subclass(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Employee(id=1, fencing_token=9), Manager(id=2), Manager(id=3)])

    with Session(engine) as session, session.begin():
        assert fenced_update(session, Manager, Manager.salary == 0, 5, {"salary": 3}) == 2


def test_the_key_of_an_alias_names_no_row(engine: Engine, accounts: list[int]) -> None:
    other = aliased(Account)
    where = and_(other.id == 1, Account.balance == other.balance)

    with Session(engine) as session:
        with pytest.raises(StaleFencingToken):
            fenced_update(session, Account, where, 25, {"balance": 0})
        session.commit()

    assert balances(engine) == {1: 100, 2: 100, 3: 100}


def test_a_scoped_session_is_a_session(engine: Engine, accounts: list[int]) -> None:
    session = scoped_session(sessionmaker(engine))
    fenced_update(session, Account, Account.id == 1, 11, {"balance": 5})
    session.commit()
    session.remove()

    assert balances(engine)[1] == 5


def test_a_version_column_does_its_part_beside_the_fence(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add(VersionedValue(id=1))
    with Session(engine) as reader:
        row = reader.get(VersionedValue, 1)
        with Session(engine) as session, session.begin():
            fenced_claim(session, VersionedValue, VersionedValue.id == 1, 5)
            session.get(VersionedValue, 1).size = 3
        row.size = 4

        with pytest.raises(StaleDataError):
            reader.commit()


def test_null_counts_as_unwritten_where_the_model_allows_it(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Old(id=1), Old(id=2)])
    with Session(engine) as session, session.begin():
        fenced_update(session, Old, Old.id == 1, 5, {"size": 3})
        fenced_update(session, Old, Old.id <= 2, 6, {"size": 4})
        with pytest.raises(StaleFencingToken):
            fenced_update(session, Old, Old.id == 1, 5, {"size": 3})


def test_a_row_whose_token_is_null_though_none_may_be_refuses_them_all(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE plain_rows")
        connection.exec_driver_sql(
            "CREATE TABLE plain_rows (id INTEGER PRIMARY KEY, size INTEGER, fencing_token BIGINT)"
        )
        connection.exec_driver_sql("INSERT INTO plain_rows VALUES (1, 0, 0), (2, 0, NULL)")
    with engine.begin() as connection:
        with pytest.raises(ConfigurationError, match="NULL"):
            fenced_update(connection, plain_table, plain_table.c.id > 0, 5, {"size": 1})

        assert connection.scalars(select(plain_table.c.size)).all() == [0, 0]


def test_the_largest_token_fits(engine: Engine, accounts: list[int]) -> None:
    largest = 2**53 - 1
    with Session(engine) as session, session.begin():
        fenced_update(session, Account, Account.id == 1, largest, {"balance": 5})

    assert token_of(engine, 1) == largest
