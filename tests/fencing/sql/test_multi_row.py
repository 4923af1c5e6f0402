"""A call whose condition holds for several rows writes all of them or none, in every way it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, insert
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from celery_redlock.errors import ConfigurationError, FencedResourceMissing, StaleFencingToken
from celery_redlock.fencing.sqlalchemy import fenced_update, fenced_update_async
from celery_redlock.fencing.sqlalchemy.update import _STRATEGIES
from tests.fencing.sql.models import Account
from tests.fencing.sql.rows import balances

pytestmark = pytest.mark.system

EVERY = Account.id <= 3


@pytest.fixture
def locking_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PostgreSQL be written as databases are whose UPDATE cannot lock what it looks at."""
    monkeypatch.setitem(_STRATEGIES, "postgresql", _STRATEGIES["mysql"])


def without_transactions(engine: Engine) -> Engine:
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def before_the_update(engine: Engine, do: Callable[[Connection], Any]) -> None:
    """Let another connection do something immediately before the first UPDATE of `engine`."""
    others = [do]

    def hook(*args: Any) -> None:
        if "UPDATE accounts" in args[2] and others:
            with engine.execution_options(isolation_level="READ COMMITTED").begin() as other:
                others.pop()(other)

    event.listen(engine, "before_cursor_execute", hook)


def write_as_holder_6(other: Connection) -> None:
    fenced_update(other, Account, Account.id == 2, 6, {"balance": 6})


def insert_as_holder_6(other: Connection) -> None:
    other.execute(insert(Account).values(id=3, balance=6, fencing_token=6))


@pytest.mark.parametrize("open_one", [Engine.connect, Session], ids=["connection", "session"])
def test_without_transactions_a_refused_call_has_written_no_row(
    plain: Engine, open_one: Callable[[Engine], Any]
) -> None:
    before_the_update(plain, write_as_holder_6)

    with open_one(without_transactions(plain)) as opened, pytest.raises(StaleFencingToken):
        fenced_update(opened, Account, EVERY, 5, {"balance": 5})

    assert balances(plain) == [0, 6]


def test_without_transactions_an_async_call_that_is_refused_has_written_no_row(
    plain: Engine, postgres_url: str
) -> None:
    async def work() -> None:
        engine = create_async_engine(postgres_url, isolation_level="AUTOCOMMIT")
        before_the_update(engine.sync_engine, write_as_holder_6)
        async with engine.connect() as connection:
            with pytest.raises(StaleFencingToken):
                await fenced_update_async(connection, Account, EVERY, 5, {"balance": 5})
        await engine.dispose()

    asyncio.run(work())

    assert balances(plain) == [0, 6]


def test_a_newer_row_that_appears_just_before_the_update_refuses_the_call(plain: Engine) -> None:
    before_the_update(plain, insert_as_holder_6)

    with Session(plain) as session, pytest.raises(StaleFencingToken):
        fenced_update(session, Account, EVERY, 5, {"balance": 5})

    assert balances(plain) == [0, 0, 6]


def test_a_call_with_the_newest_token_writes_all_rows(plain: Engine) -> None:
    with without_transactions(plain).connect() as connection:
        values = {"balance": Account.balance + 5}
        assert fenced_update(connection, Account, EVERY, 5, values) == 2

    assert balances(plain) == [5, 5]


@pytest.mark.usefixtures("locking_first")
def test_locking_first_writes_the_rows_that_were_locked_and_no_others(plain: Engine) -> None:
    before_the_update(plain, lambda other: other.execute(insert(Account).values(id=3, balance=9)))

    with Session(plain) as session, session.begin():
        assert fenced_update(session, Account, EVERY, 5, {"balance": 5}) == 2

    assert balances(plain) == [5, 5, 9]


@pytest.mark.usefixtures("locking_first")
def test_locking_first_writes_no_row_if_one_is_newer(plain: Engine) -> None:
    with plain.begin() as other:
        write_as_holder_6(other)

    with Session(plain) as session:
        with pytest.raises(StaleFencingToken):
            fenced_update(session, Account, EVERY, 5, {"balance": 5})
        session.commit()

    assert balances(plain) == [0, 6]


@pytest.mark.usefixtures("locking_first")
def test_locking_first_finds_no_row_missing_where_there_is_none(plain: Engine) -> None:
    with Session(plain) as session, pytest.raises(FencedResourceMissing):
        fenced_update(session, Account, Account.id > 3, 5, {"balance": 5})


@pytest.mark.usefixtures("locking_first")
def test_locking_first_is_refused_where_no_transaction_would_keep_the_locks(
    plain: Engine, postgres_url: str
) -> None:
    engines = [
        without_transactions(plain),
        create_engine(postgres_url, isolation_level="AUTOCOMMIT"),
    ]
    for engine in engines:
        with Session(engine) as session, pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            fenced_update(session, Account, EVERY, 5, {"balance": 5})
    engines[1].dispose()

    assert balances(plain) == [0, 0]
