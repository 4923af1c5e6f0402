"""After the guard let a transaction in, its session serves nothing that it had loaded before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from celery_redlock.errors import ConfigurationError, StaleFencingToken
from celery_redlock.fencing.sqlalchemy import (
    fenced_claim,
    fenced_claim_async,
    fenced_update,
    fenced_upsert,
)
from tests.fencing.sql.conftest import RunAsync
from tests.fencing.sql.models import Account, Entry, Folder, Pilot, Seat, VersionedValue
from tests.fencing.sql.rows import add, stored, write

Guard = Callable[[Session, int], object]


def claim(session: Session, token: int) -> None:
    fenced_claim(session, Account, Account.id == 1, token)


def claim_several(session: Session, token: int) -> None:
    fenced_claim(session, Account, Account.id <= 1, token)


def claim_the_table(session: Session, token: int) -> None:
    fenced_claim(session, Account.__table__, Account.__table__.c.id == 1, token)


def write_another_column(session: Session, token: int) -> None:
    fenced_update(session, Account, Account.id == 1, token, {"owner": "me"})


def upsert(session: Session, token: int) -> None:
    fenced_upsert(session, Account, token, {"id": 1, "owner": "me"})


def upsert_the_table(session: Session, token: int) -> None:
    fenced_upsert(session, Account.__table__, token, {"id": 1, "owner": "me"})


GUARDS: list[Guard] = [
    claim,
    claim_several,
    claim_the_table,
    write_another_column,
    upsert,
    upsert_the_table,
]

READS: list[Callable[[Session], Any]] = [
    lambda session: session.get(Account, 1),
    lambda session: session.scalars(select(Account).where(Account.id == 1)).one(),
    lambda session: session.scalars(select(Account).where(Account.id == 1).with_for_update()).one(),
]


@pytest.fixture(autouse=True)
def accounts(engine: Engine) -> None:
    add(engine, Account(id=1, balance=100), Account(id=2, balance=100))


def write_as_holder_5(engine: Engine) -> None:
    write(engine, Account.id == 1, 5, balance=150)


@pytest.fixture
def session(engine: Engine) -> Any:
    """A session that has loaded the accounts before holder 5 wrote 150 into the first one."""
    with Session(engine, expire_on_commit=False) as session:
        # Kept, because the session's own hold on what is loaded is weak.
        session.info["loaded"] = session.scalars(select(Account).order_by(Account.id)).all()
        session.commit()
        write_as_holder_5(engine)
        yield session


@pytest.mark.parametrize("read", READS, ids=["get", "select", "locking select"])
@pytest.mark.parametrize("guard", GUARDS)
def test_what_is_read_after_the_guard_is_what_the_last_holder_has_written(
    session: Session, guard: Guard, read: Callable[[Session], Any]
) -> None:
    guard(session, 6)

    assert (read(session).balance, read(session).fencing_token) == (150, 6)


def test_no_update_of_the_last_holder_is_lost_by_the_recipe(
    session: Session, engine: Engine
) -> None:
    fenced_claim(session, Account, Account.id == 1, 6)
    account = session.get(Account, 1)
    account.balance += 10
    session.commit()

    assert stored(engine) == (160, 6)


def test_objects_whose_rows_did_not_match_stay_as_they_are(
    session: Session, engine: Engine
) -> None:
    with Session(engine) as other, other.begin():
        other.get(Account, 2).balance = 7
    fenced_claim(session, Account, Account.id == 1, 6)

    assert session.get(Account, 2).balance == 100


def test_what_belongs_to_a_claimed_object_is_read_again_with_it(engine: Engine) -> None:
    add(engine, Folder(id=1, entries=[Entry(id=1, size=1)]))
    with Session(engine, expire_on_commit=False) as session:
        folder = session.get(Folder, 1)
        (entry,) = folder.entries
        session.commit()
        with Session(engine) as other, other.begin():
            other.get(Entry, 1).size = 2
            other.add(Entry(id=2, size=3, folder_id=1))

        fenced_claim(session, Folder, Folder.id == 1, 6)

        assert sorted(entry.size for entry in folder.entries) == [2, 3]
        assert entry.size == 2


def test_an_object_in_two_tables_is_read_again_when_one_of_them_is_claimed(engine: Engine) -> None:
    add(engine, Pilot(id=1, hours=1))
    with Session(engine, expire_on_commit=False) as session:
        pilot = session.get(Pilot, 1)
        session.commit()
        with Session(engine) as other, other.begin():
            other.get(Pilot, 1).hours = 2

        employees = Pilot.__mapper__.inherits.local_table
        fenced_claim(session, employees, employees.c.id == 1, 6)

        assert pilot.hours == 2


def test_objects_with_a_composite_key_are_told_apart(engine: Engine) -> None:
    add(engine, *[Seat(row=1, number=n, guest="A") for n in (1, 2)])
    with Session(engine, expire_on_commit=False) as session:
        seats = session.scalars(select(Seat).order_by(Seat.number)).all()
        session.commit()
        with Session(engine) as other, other.begin():
            for seat in other.scalars(select(Seat)):
                seat.guest = "B"

        fenced_claim(session, Seat, (Seat.row == 1) & (Seat.number == 2), 6)

        assert [seat.guest for seat in seats] == ["A", "B"]


def test_thousands_of_loaded_objects_are_read_again(engine: Engine) -> None:
    add(engine, *[Account(id=n, balance=1) for n in range(10, 2210)])
    with Session(engine, expire_on_commit=False) as session:
        loaded = session.scalars(select(Account).where(Account.id >= 10)).all()
        session.commit()

        fenced_update(session, Account, Account.id >= 10, 6, {"balance": Account.balance + 1})

        assert {account.balance for account in loaded} == {2}


@pytest.mark.parametrize("guard", GUARDS)
def test_changes_that_were_made_before_the_guard_are_refused_by_name(
    session: Session, engine: Engine, guard: Guard
) -> None:
    session.get(Account, 1).balance += 10

    with pytest.raises(ConfigurationError, match=r"Account\.balance"):
        guard(session, 6)
    # A caller who keeps the transaction all the same, without the change.
    session.expire_all()
    session.commit()

    assert stored(engine) == (150, 5)


def test_a_deletion_that_is_pending_is_refused_by_name(session: Session) -> None:
    session.delete(session.get(Account, 1))

    with pytest.raises(ConfigurationError, match="to be deleted"):
        fenced_claim(session, Account, Account.id == 1, 6)


def test_a_change_to_what_is_read_again_with_a_claimed_object_is_refused_by_name(
    engine: Engine,
) -> None:
    add(engine, Folder(id=1, entries=[Entry(id=1, size=1)]))
    with Session(engine) as session:
        folder = session.get(Folder, 1)
        folder.entries[0].size = 2

        with pytest.raises(ConfigurationError, match=r"Entry\.size"):
            fenced_claim(session, Folder, Folder.id == 1, 6)


def test_what_was_added_to_a_collection_before_the_claim_is_refused_and_not_dropped(
    engine: Engine,
) -> None:
    add(engine, Folder(id=1))
    with Session(engine) as session:
        folder = session.get(Folder, 1)
        folder.entries.append(Entry(id=1, size=2))

        with pytest.raises(ConfigurationError, match=r"Folder\.entries"):
            fenced_claim(session, Folder, Folder.id == 1, 6)
        assert len(folder.entries) == 1


@pytest.mark.parametrize("guard", GUARDS)
def test_a_stale_token_is_the_first_thing_that_is_refused(session: Session, guard: Guard) -> None:
    session.get(Account, 1).balance += 10

    with pytest.raises(StaleFencingToken):
        guard(session, 4)


@pytest.mark.parametrize("guard", GUARDS)
def test_changes_to_other_rows_are_neither_refused_nor_lost(
    session: Session, engine: Engine, guard: Guard
) -> None:
    session.get(Account, 2).balance += 10

    guard(session, 6)
    session.commit()

    assert stored(engine, 2) == (110, 0)


def test_a_version_that_was_loaded_before_the_claim_is_no_hindrance(engine: Engine) -> None:
    add(engine, VersionedValue(id=1))
    with Session(engine, expire_on_commit=False) as session:
        row = session.get(VersionedValue, 1)
        session.commit()
        with Session(engine) as other, other.begin():
            other.get(VersionedValue, 1).size = 3

        fenced_claim(session, VersionedValue, VersionedValue.id == 1, 6)
        row.size += 1
        session.commit()

        assert row.size == 4


def test_an_async_session_s_objects_are_read_again_and_need_no_further_query(
    run_async: RunAsync, engine: Engine
) -> None:
    async def work(session: AsyncSession) -> None:
        account = await session.get(Account, 1)
        await session.commit()
        write_as_holder_5(engine)

        await fenced_claim_async(session, Account, Account.id == 1, 6)
        assert (account.balance, account.fencing_token) == (150, 6)
        account.balance += 10

    run_async(work)

    assert stored(engine) == (160, 6)


def test_an_async_session_s_changes_from_before_the_claim_are_refused_by_name(
    run_async: RunAsync,
) -> None:
    async def work(session: AsyncSession) -> None:
        (await session.get(Account, 1)).balance += 10
        await fenced_claim_async(session, Account, Account.id == 1, 6)

    with pytest.raises(ConfigurationError, match=r"Account\.balance"):
        run_async(work)
