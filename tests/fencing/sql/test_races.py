"""Processes race for the same rows, and each call does what it has reported."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from tests.fencing.sql.models import Account, Base
from tests.fencing.sql.racing import ROWS, WAIT_FOR_LOCK, deposit, race, write
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
    with Session(engine) as session, session.begin():
        session.add(Account(id=1))
    options = {"connect_args": {"timeout": WAIT_FOR_LOCK}} if "sqlite" in url else {}

    ends = race(url, deposit, processes=PROCESSES, calls=CALLS, **options)

    with Session(engine) as session:
        assert session.get(Account, 1).balance == len(ends.accepted)
    assert len(ends.accepted) + len(ends.refused) == PROCESSES * CALLS


@pytest.mark.system
@pytest.mark.timeout(10 * TIMEOUT)
def test_without_transactions_a_call_writes_all_of_its_rows_or_none(postgres: str) -> None:
    engine = create_engine(postgres)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Account(id=number) for number in range(1, ROWS + 1)])
    with engine.begin() as connection:
        for statement in RECORD:
            connection.execute(text(statement))
    try:
        ends = race(postgres, write, processes=PROCESSES, calls=CALLS, isolation_level="AUTOCOMMIT")

        with engine.connect() as connection:
            written = Counter(connection.scalars(text("SELECT name FROM record")))
    finally:
        Base.metadata.drop_all(engine)
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE record"))
            connection.execute(text("DROP FUNCTION record"))
        engine.dispose()
    assert [name for name in ends.refused if written[name]] == []
    assert {written[name] for name in ends.accepted} == {1, ROWS}
    assert ends.refused
