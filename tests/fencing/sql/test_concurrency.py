"""Two transactions at once: the token is compared with what the other one has committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text
from sqlalchemy.orm import Session

from celery_redlock.errors import FencedResourceMissing, StaleFencingToken
from celery_redlock.fencing.sqlalchemy import fenced_claim, fenced_update, fenced_upsert
from tests.fencing.sql.models import Account
from tests.fencing.sql.rows import add, balances, write
from tests.support.waiting import TIMEOUT, wait_until

FIRST, SECOND = 1, 2

Race = Callable[[Callable[[Session], Any], Callable[[], Any]], Future[Any]]


@pytest.fixture(autouse=True)
def accounts(engine: Engine) -> None:
    add(engine, Account(id=FIRST), Account(id=SECOND))


def wait_until_blocked(engine: Engine, started: list[Any]) -> None:
    """Wait until the other transaction waits for a lock, as far as the database tells."""
    wait_until(lambda: started, message="the other transaction to begin")
    if engine.dialect.name == "postgresql":
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")

        def blocked() -> bool:
            with engine.connect() as connection:
                return bool(connection.scalar(waiting))

        wait_until(blocked, message="a transaction that waits for a lock")


@pytest.fixture
def race(engine: Engine) -> Iterator[Race]:
    """Let `older` begin while `newer` has written and not committed; commit; return its end."""
    started: list[Any] = []
    with ThreadPoolExecutor(1) as pool:

        def run(newer: Callable[[Session], Any], older: Callable[[], Any]) -> Future[Any]:
            event.listen(engine, "before_cursor_execute", lambda *args: started.append(args))
            with Session(engine) as session, session.begin():
                newer(session)
                started.clear()
                result = pool.submit(older)
                wait_until_blocked(engine, started)
            return result

        yield run


def test_a_stale_write_that_waited_for_the_newer_one_is_refused(engine: Engine, race: Race) -> None:
    older = race(
        lambda session: fenced_update(session, Account, Account.id == FIRST, 6, {"balance": 6}),
        lambda: write(engine, Account.id == FIRST, 5, balance=5),
    )

    with pytest.raises(StaleFencingToken) as refused:
        older.result(TIMEOUT)
    assert (refused.value.seen, refused.value.offered) == (6, 5)
    assert balances(engine) == [6, 0]


def test_a_stale_write_of_several_rows_that_waited_for_one_of_them_writes_none(
    engine: Engine, race: Race
) -> None:
    older = race(
        lambda session: fenced_claim(session, Account, Account.id == SECOND, 6),
        lambda: write(engine, Account.id <= SECOND, 5, balance=5),
    )

    with pytest.raises(StaleFencingToken):
        older.result(TIMEOUT)
    assert balances(engine) == [0, 0]


def test_a_write_that_waited_for_an_older_one_builds_upon_it(engine: Engine, race: Race) -> None:
    newer = race(
        lambda session: fenced_update(session, Account, Account.id == FIRST, 5, {"balance": 40}),
        lambda: write(engine, Account.id == FIRST, 6, balance=Account.balance + 2),
    )

    assert newer.result(TIMEOUT) == 1
    assert balances(engine) == [42, 0]


def test_a_row_that_was_deleted_while_the_write_waited_is_missing(
    engine: Engine, race: Race
) -> None:
    write_of_deleted = race(
        lambda session: session.execute(text("DELETE FROM accounts WHERE id = 1")),
        lambda: write(engine, Account.id == FIRST, 5, balance=5),
    )

    with pytest.raises(FencedResourceMissing):
        write_of_deleted.result(TIMEOUT)


def test_a_stale_upsert_that_waited_for_the_newer_insert_is_refused(
    engine: Engine, race: Race
) -> None:
    def upsert() -> None:
        with Session(engine) as session, session.begin():
            fenced_upsert(session, Account, 5, {"id": 3, "balance": 5})

    older = race(
        lambda session: fenced_upsert(session, Account, 6, {"id": 3, "balance": 6}),
        upsert,
    )

    with pytest.raises(StaleFencingToken):
        older.result(TIMEOUT)
    assert balances(engine) == [0, 0, 6]


def test_without_a_claim_a_write_between_read_and_write_is_lost(engine: Engine) -> None:
    with Session(engine) as newer:
        seen = newer.scalar(select(Account.balance).where(Account.id == FIRST))
        newer.commit()
        write(engine, Account.id == FIRST, 5, balance=Account.balance + 50)
        fenced_update(newer, Account, Account.id == FIRST, 6, {"balance": seen + 1})
        newer.commit()

    assert balances(engine)[0] == 1


def test_with_a_claim_the_write_between_read_and_write_is_refused(engine: Engine) -> None:
    with Session(engine) as newer:
        fenced_claim(newer, Account, Account.id == FIRST, 6)
        seen = newer.scalar(select(Account.balance).where(Account.id == FIRST))
        newer.commit()
        with pytest.raises(StaleFencingToken):
            write(engine, Account.id == FIRST, 5, balance=Account.balance + 50)
        fenced_update(newer, Account, Account.id == FIRST, 6, {"balance": seen + 1})
        newer.commit()

    assert balances(engine)[0] == 1
