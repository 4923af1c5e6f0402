"""What the guard meets on PostgreSQL at other isolation levels than READ COMMITTED."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from celery_redlock.fencing.sqlalchemy import fenced_update
from tests.fencing.sql.models import Account
from tests.fencing.sql.rows import balances, write

pytestmark = pytest.mark.system


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_older_than_the_newer_write_fails_as_the_level_says(
    plain: Engine, level: str
) -> None:
    engine = plain.execution_options(isolation_level=level)
    with Session(engine) as session:
        session.get(Account, 1)
        write(plain, Account.id == 1, 6, balance=6)

        with pytest.raises(OperationalError, match="could not serialize"):
            fenced_update(session, Account, Account.id == 1, 5, {"balance": 5})
    assert balances(plain) == [6, 0]
