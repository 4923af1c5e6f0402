"""The same guards on async sessions and connections."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.ext.asyncio import AsyncSession

from celery_redlock import Lease
from celery_redlock.errors import FencedResourceMissing, StaleFencingToken
from celery_redlock.fencing.sqlalchemy import (
    fenced_claim_async,
    fenced_update_async,
    fenced_upsert_async,
)
from tests.fencing.sql.conftest import RunAsync
from tests.fencing.sql.models import Account, plain_table
from tests.fencing.sql.rows import add

ONE = Account.id == 1


@pytest.fixture(autouse=True)
def account(engine: Engine) -> None:
    add(engine, Account(id=1, fencing_token=10))


def test_a_session_writes_and_its_objects_show_it_without_another_query(
    run_async: RunAsync,
) -> None:
    async def work(session: AsyncSession) -> None:
        account = await session.get(Account, 1)
        await fenced_update_async(session, Account, ONE, 11, {"balance": 5})
        assert (account.balance, account.fencing_token) == (5, 11)

    run_async(work)


def test_a_stale_token_is_refused(run_async: RunAsync) -> None:
    with pytest.raises(StaleFencingToken):
        run_async(lambda session: fenced_update_async(session, Account, ONE, 9, {"balance": 5}))


def test_a_missing_row_is_another_error(run_async: RunAsync) -> None:
    with pytest.raises(FencedResourceMissing):
        run_async(lambda session: fenced_claim_async(session, Account, Account.id == 2, 9))


def test_a_connection_writes_a_core_table(run_async: RunAsync) -> None:
    async def work(session: AsyncSession) -> None:
        connection = await session.connection()
        await connection.execute(insert(plain_table).values(id=1))
        where = plain_table.c.id == 1
        assert await fenced_update_async(connection, plain_table, where, 5, {"size": 2}) == 1

    run_async(work)


def test_an_upsert_inserts_writes_and_refuses(run_async: RunAsync) -> None:
    async def work(session: AsyncSession) -> None:
        await fenced_upsert_async(session, Account, 5, {"id": 2, "balance": 1})
        await fenced_upsert_async(session, Account, 6, {"id": 2, "balance": 2})
        with pytest.raises(StaleFencingToken):
            await fenced_upsert_async(session, Account, 5, {"id": 2, "balance": 3})
        assert (await session.get(Account, 2)).balance == 2

    run_async(work)


def test_the_token_is_that_of_the_lease_under_which_the_coroutine_runs(
    run_async: RunAsync, lease: Lease
) -> None:
    async def work(session: AsyncSession) -> None:
        await fenced_update_async(session, Account, ONE, values={"balance": 5})
        account = await session.get(Account, 1)
        assert account.fencing_token == lease.fencing_token

    run_async(work)
