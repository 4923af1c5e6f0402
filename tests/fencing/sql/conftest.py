"""The same tests on SQLite, and on a real PostgreSQL where Debian's package is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tests.fencing.sql.models import Account, Base
from tests.fencing.sql.rows import add

RunAsync = Callable[[Callable[[AsyncSession], Awaitable[object]]], None]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.system)])
def url(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> str:
    """An empty database."""
    return url_of(request.param)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """An engine of a database with the tables of the models."""
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def plain(postgres_url: str) -> Iterator[Engine]:
    """An engine of PostgreSQL at its default level, on a database with two accounts."""
    engine = create_engine(postgres_url)
    Base.metadata.create_all(engine)
    add(engine, Account(id=1), Account(id=2))
    yield engine
    engine.dispose()


@pytest.fixture
def statements(engine: Engine) -> list[str]:
    """The first words of all statements from here on."""
    words: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: words.append(args[2].split()[0]))
    return words


@pytest.fixture
def run_async(url: str, engine: Engine) -> RunAsync:
    """Run a coroutine function with an async session of the database, and commit."""

    async def main(work: Callable[[AsyncSession], Awaitable[object]]) -> None:
        engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        try:
            async with AsyncSession(engine, expire_on_commit=False) as session:
                await work(session)
                await session.commit()
        finally:
            await engine.dispose()

    return lambda work: asyncio.run(main(work))
