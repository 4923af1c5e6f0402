"""Processes race for the same rows, and each call does what it has reported."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import Engine, text

from tests.fencing.sql.models import Account
from tests.fencing.sql.racing import ROWS, WAIT_FOR_LOCK, deposit, race, write
from tests.fencing.sql.rows import add, balances
from tests.support.waiting import TIMEOUT

PROCESSES = 5
CALLS = 40

# What the database really did: one row for every row that was written.
RECORD = (
    "CREATE TABLE record (name TEXT)",
    "CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN INSERT INTO record VALUES (NEW.owner); RETURN NEW; END'",
    "CREATE TRIGGER record AFTER UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION record()",
)


@pytest.mark.full
@pytest.mark.timeout(10 * TIMEOUT)
def test_no_deposit_is_lost_that_looks_before_its_claim(engine: Engine, url: str) -> None:
    add(engine, Account(id=1))
    options = {"connect_args": {"timeout": WAIT_FOR_LOCK}} if "sqlite" in url else {}

    ends = race(url, deposit, processes=PROCESSES, calls=CALLS, **options)

    assert balances(engine) == [len(ends.accepted)]
    assert len(ends.accepted) + len(ends.refused) == PROCESSES * CALLS


@pytest.mark.system
@pytest.mark.timeout(10 * TIMEOUT)
def test_without_transactions_a_call_writes_all_of_its_rows_or_none(
    plain: Engine, postgres_url: str
) -> None:
    add(plain, *(Account(id=number) for number in range(3, ROWS + 1)))
    with plain.begin() as connection:
        for statement in RECORD:
            connection.execute(text(statement))

    options = {"processes": PROCESSES, "calls": CALLS, "isolation_level": "AUTOCOMMIT"}
    ends = race(postgres_url, write, **options)

    with plain.connect() as connection:
        written = Counter(connection.scalars(text("SELECT name FROM record")))
    assert [name for name in ends.refused if written[name]] == []
    assert {written[name] for name in ends.accepted} == {1, ROWS}
    assert ends.refused
