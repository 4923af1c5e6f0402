"""Targets, values and tokens with which a guard could not hold are refused before any SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import CursorResult, Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from celery_redlock import Lease
from celery_redlock.errors import (
    ConfigurationError,
    FencedResourceMissing,
    InvalidFencingToken,
    StaleFencingToken,
)
from celery_redlock.fencing.sqlalchemy import (
    fenced_claim,
    fenced_update,
    fenced_update_async,
    fenced_upsert,
)
from celery_redlock.fencing.sqlalchemy.update import _STRATEGIES
from tests.fencing.sql.models import (
    Account,
    Base,
    Employee,
    Narrow,
    Pilot,
    Unfenced,
)

NO_TOKENS = [0, -1, 1.0, "1", True, False, b"1", 2**53, 2**63, [1]]


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Account(id=1))
        session.flush()
        yield session
    engine.dispose()


def foreign_engine(name: str) -> Engine:
    """An engine of a database that no test here has; it never connects."""
    driver: Any = SimpleNamespace(paramstyle="format", version_info=(2, 0, 0), Error=Exception)
    return create_engine(f"{name}://nowhere/", module=driver)


def update(session: Any, token: Any) -> None:
    fenced_update(session, Account, Account.id == 1, token, {"balance": 1})


def claim(session: Any, token: Any) -> None:
    fenced_claim(session, Account, Account.id == 1, token)


def upsert(session: Any, token: Any) -> None:
    fenced_upsert(session, Account, token, {"id": 1})


GUARDS = [update, claim, upsert]


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("token", NO_TOKENS, ids=repr)
def test_what_is_no_token_is_refused(
    session: Session, guard: Callable[..., None], token: Any
) -> None:
    with pytest.raises(InvalidFencingToken):
        guard(session, token)

    assert session.get(Account, 1).fencing_token == 0


@pytest.mark.parametrize("guard", GUARDS)
def test_a_token_must_be_given_where_no_lease_is_held(
    session: Session, guard: Callable[..., None]
) -> None:
    with pytest.raises(InvalidFencingToken, match="not run under a lease"):
        guard(session, None)


@pytest.mark.parametrize("guard", GUARDS)
def test_the_token_is_that_of_the_current_lease(
    session: Session, guard: Callable[..., None], lease: Lease
) -> None:
    guard(session, None)

    session.expire_all()
    assert session.get(Account, 1).fencing_token == lease.fencing_token


def test_values_alone_are_enough_under_a_lease(session: Session, lease: Lease) -> None:
    fenced_update(session, Account, Account.id == 1, values={"balance": 7})

    account = session.get(Account, 1)
    assert (account.balance, account.fencing_token) == (7, lease.fencing_token)


def test_values_must_be_given(session: Session) -> None:
    with pytest.raises(TypeError, match="values"):
        fenced_update(session, Account, Account.id == 1, token=5)  # type: ignore[call-overload]


@pytest.mark.parametrize("key", ["fencing_token", Account.fencing_token])
def test_the_fence_itself_is_no_value(session: Session, key: Any) -> None:
    with pytest.raises(ConfigurationError, match="token="):
        fenced_update(session, Account, Account.id == 1, 5, {key: 1})


def test_a_class_without_the_column_is_told_what_to_add(session: Session) -> None:
    with pytest.raises(ConfigurationError, match="FencedMixin"):
        fenced_update(session, Unfenced, Unfenced.id == 1, 5, {})


def test_a_table_without_the_column_is_told_what_to_add(session: Session) -> None:
    table = Base.metadata.tables["unfenced"]

    with pytest.raises(ConfigurationError, match=r"fencing_column\(\)"):
        fenced_update(session, table, table.c.id == 1, 5, {})


def test_a_class_in_two_tables_is_refused_with_their_names(session: Session) -> None:
    with pytest.raises(ConfigurationError, match="employees, pilots"):
        fenced_update(session, Pilot, Pilot.id == 1, 5, {"hours": 1})


def test_the_part_of_such_a_class_that_has_the_column_is_fine(session: Session) -> None:
    session.add(Pilot(id=1))
    session.flush()

    assert fenced_update(session, Employee, Employee.id == 1, 5, {"salary": 1}) == 1


@pytest.mark.parametrize("target", [object, "accounts", Account(id=5), None])
def test_what_is_no_table_is_refused(session: Session, target: Any) -> None:
    with pytest.raises(ConfigurationError, match="neither"):
        fenced_update(session, target, Account.id == 1, 5, {})


@pytest.mark.parametrize("where", [True, False, "id = 1", None, lambda: True])
def test_what_is_no_condition_is_refused(session: Session, where: Any) -> None:
    with pytest.raises(TypeError, match="condition"):
        fenced_update(session, Account, where, 5, {"balance": 1})


def test_a_column_of_32_bits_is_refused_where_it_would_overflow() -> None:
    with (
        Session(foreign_engine("mysql+pymysql")) as session,
        pytest.raises(ConfigurationError, match="BIGINT"),
    ):
        fenced_update(session, Narrow, Narrow.id == 1, 5, {})


def test_a_column_of_32_bits_is_no_matter_to_sqlite(session: Session) -> None:
    session.add(Narrow(id=1))
    session.flush()

    fenced_update(session, Narrow, Narrow.id == 1, 2**53 - 1, {})
    with pytest.raises(StaleFencingToken):
        fenced_update(session, Narrow, Narrow.id == 1, 2**53 - 2, {})


def test_a_driver_that_does_not_count_rows_is_refused(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A property, because some versions keep the number in the instance.
    monkeypatch.setattr(CursorResult, "rowcount", property(lambda _: -1, lambda *_: None))

    with pytest.raises(ConfigurationError, match="pysqlite"):
        fenced_update(session, Account, Account.id == 1, 5, {"balance": 1})


def test_several_rows_are_refused_where_it_is_not_known_how_to_write_all_or_none(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(_STRATEGIES, "sqlite")

    with pytest.raises(ConfigurationError, match="primary key"):
        fenced_update(session, Account, Account.balance >= 0, 5, {"balance": 1})


def test_an_upsert_is_refused_where_the_database_has_none() -> None:
    with (
        Session(foreign_engine("mysql+pymysql")) as session,
        pytest.raises(ConfigurationError, match="fenced_update"),
    ):
        fenced_upsert(session, Account, 5, {"id": 1})


def test_an_async_session_is_sent_to_the_async_functions() -> None:
    session: Any = AsyncSession()

    with pytest.raises(ConfigurationError, match=r"not sqlalchemy.*AsyncSession.*_async"):
        fenced_update(session, Account, Account.id == 1, 5, {})


def test_a_blocking_session_is_sent_to_the_blocking_functions() -> None:
    session: Any = Session()

    with pytest.raises(ConfigurationError, match=r"not sqlalchemy.*Session.*use fenced_update"):
        asyncio.run(fenced_update_async(session, Account, Account.id == 1, 5, {}))


def test_an_engine_is_sent_to_its_session() -> None:
    engine: Any = create_engine("sqlite://")

    with pytest.raises(ConfigurationError, match=r"give Session\(engine\)"):
        fenced_update(engine, Account, Account.id == 1, 5, {})


def test_an_object_that_was_only_added_is_missing_and_the_message_says_flush(
    session: Session,
) -> None:
    session.add(Account(id=2))

    with pytest.raises(FencedResourceMissing, match="flush"):
        fenced_update(session, Account, Account.id == 2, 5, {})
