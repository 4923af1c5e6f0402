"""The same guards on async sessions and connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from celery_redlock import Redlock
from celery_redlock.core import set_current_lease
from celery_redlock.errors import FencedResourceMissing, StaleFencingToken
from celery_redlock.fencing.sqlalchemy import (
    fenced_claim_async,
    fenced_update_async,
    fenced_upsert_async,
)
from tests.fencing.sql.models import Account, plain_table

Run = Callable[[Callable[[AsyncEngine], Awaitable[None]]], None]


@pytest.fixture
def run(url: str) -> Run:
    """Run a coroutine function with an async engine on the database."""

    async def main(work: Callable[[AsyncEngine], Awaitable[None]]) -> None:
        engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        try:
            async with AsyncSession(engine) as session, session.begin():
                session.add(Account(id=1, fencing_token=10))
            await work(engine)
        finally:
            await engine.dispose()

    return lambda work: asyncio.run(main(work))


def test_a_session_writes_and_its_objects_show_it_without_another_query(run: Run) -> None:
    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            account = await session.get(Account, 1)
            await fenced_update_async(session, Account, Account.id == 1, 11, {"balance": 5})
            assert (account.balance, account.fencing_token) == (5, 11)

    run(work)


def test_a_stale_token_is_refused(run: Run) -> None:
    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(StaleFencingToken):
                await fenced_update_async(session, Account, Account.id == 1, 9, {"balance": 5})

    run(work)


def test_a_missing_row_is_another_error(run: Run) -> None:
    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(FencedResourceMissing):
                await fenced_claim_async(session, Account, Account.id == 2, 9)

    run(work)


def test_a_connection_writes_a_core_table(run: Run) -> None:
    async def work(engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            await connection.execute(insert(plain_table).values(id=1))
            where = plain_table.c.id == 1
            assert await fenced_update_async(connection, plain_table, where, 5, {"size": 2}) == 1

    run(work)


def test_an_upsert_inserts_writes_and_refuses(run: Run) -> None:
    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            await fenced_upsert_async(session, Account, 5, {"id": 2, "balance": 1})
            await fenced_upsert_async(session, Account, 6, {"id": 2, "balance": 2})
            with pytest.raises(StaleFencingToken):
                await fenced_upsert_async(session, Account, 5, {"id": 2, "balance": 3})
            assert (await session.get(Account, 2)).balance == 2

    run(work)


def test_the_token_is_that_of_the_lease_under_which_the_coroutine_runs(run: Run) -> None:
    async def work(engine: AsyncEngine) -> None:
        with Redlock(["memory://async"]) as redlock, redlock.lock("key") as lease:
            set_current_lease(lease)
            async with AsyncSession(engine) as session, session.begin():
                await fenced_update_async(session, Account, Account.id == 1, values={"balance": 5})
                account = await session.get(Account, 1)
                assert account.fencing_token == lease.fencing_token

    run(work)
