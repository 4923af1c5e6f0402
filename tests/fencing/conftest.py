"""One PostgreSQL server for all tests of guards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import running_postgres


@pytest.fixture(scope="session")
def postgres_address() -> Iterator[str]:
    """The address of a real server, as `user@host:port/database`."""
    with running_postgres() as address:
        yield address
