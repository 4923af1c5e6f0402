"""One PostgreSQL server for all tests of guards, and what else they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from celery_redlock import Lease, Redlock
from celery_redlock.core import set_current_lease
from tests.support.postgres import running_postgres


@pytest.fixture(scope="session")
def postgres_address() -> Iterator[str]:
    """The address of a real server, as `user@host:port/database`."""
    with running_postgres() as address:
        yield address


@pytest.fixture
def postgres_url(postgres_address: str) -> Iterator[str]:
    """The URL of an empty database."""
    url = f"postgresql+psycopg://{postgres_address}"
    yield url
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()


@pytest.fixture
def url_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """The URL of an empty server or database of a kind; empty where a kind needs none."""

    def url_of(kind: str) -> str:
        if kind.startswith("redis"):
            url: str = request.getfixturevalue("redlock_cluster_factory")(1).urls[0]
            return url
        if kind == "postgresql":
            return str(request.getfixturevalue("postgres_url"))
        return f"sqlite:///{tmp_path / 'data.sqlite'}" if kind == "sqlite" else ""

    return url_of


@pytest.fixture
def lease(redlock_memory_nodes: list[str]) -> Iterator[Lease]:
    """The current lease."""
    with Redlock(redlock_memory_nodes) as redlock, redlock.lock("a") as lease:
        set_current_lease(lease)
        yield lease
        set_current_lease(None)
