"""The same tests on SQLite, and on a real PostgreSQL where Debian's package is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

from tests.fencing.sql.models import Base


@pytest.fixture(scope="session")
def postgres(postgres_address: str) -> str:
    return f"postgresql+psycopg://{postgres_address}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.system)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database with the tables of the models."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'data.sqlite'}"
    else:
        url = request.getfixturevalue("postgres")
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    engine.dispose()
    yield url
    engine = create_engine(url)
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url)
    yield engine
    engine.dispose()
