"""
A guarded write to a row against the bare one: the same transaction with and without the token.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, update
from sqlalchemy.orm import Session, registry

from bench.measure import Rounds, compare, time_each
from bench.results import Result, in_microseconds, ratios
from celery_redlock.fencing.sqlalchemy import fenced_update, fencing_column
from tests.support.postgres import postgres_programs, running_postgres

_TOKEN = 5
_WARM_UP = 50

_mapped = registry()
_accounts = Table(
    "bench_accounts",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("balance", Integer),
    fencing_column(),
)


class _Account:
    pass


_mapped.map_imperatively(_Account, _accounts)


def sql_guards(quick: bool) -> list[Result]:
    """Write through Core and through the ORM, on SQLite and, where it is installed, PostgreSQL."""
    results = []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {"SQLite": f"sqlite:///{directory / 'bench.sqlite'}"}
        if postgres_programs() is not None:
            address = stack.enter_context(running_postgres())
            urls["PostgreSQL"] = f"postgresql+psycopg://{address}"
        for name, url in urls.items():
            results += _compare(name, url, Rounds(count=6 if quick else 30, operations=50))
    return results


def _compare(name: str, url: str, rounds: Rounds) -> Iterator[Result]:
    engine = create_engine(url)
    _accounts.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(_accounts).values(id=1, balance=0))
    core = _accounts.c.id == 1
    orm = _Account.id == 1  # type: ignore[attr-defined]

    def guarded_core() -> None:
        with engine.begin() as connection:
            fenced_update(connection, _accounts, core, _TOKEN, {"balance": 1})

    def bare_core() -> None:
        with engine.begin() as connection:
            connection.execute(update(_accounts).where(core).values(balance=1))

    def guarded_orm() -> None:
        with Session(engine) as session, session.begin():
            fenced_update(session, _Account, orm, _TOKEN, {"balance": 1})

    def bare_orm() -> None:
        with Session(engine) as session, session.begin():
            session.execute(update(_Account).where(orm).values(balance=1))

    for kind, ours, bare in (("Core", guarded_core, bare_core), ("ORM", guarded_orm, bare_orm)):
        time_each(ours, _WARM_UP)
        time_each(bare, _WARM_UP)
        pairs = compare(ours, bare, rounds)
        yield Result(
            row="sql-guards",
            what=f"fenced_update / bare UPDATE, one transaction each, {name}, {kind}",
            goal=None,
            values=ratios(pairs),
            detail=in_microseconds("guarded", "bare", pairs),
        )
    engine.dispose()
