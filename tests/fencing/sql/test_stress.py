"""Eight processes write a thousand times each into one row, and are paused past their leases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from celery_redlock.fencing.sqlalchemy import FencedMixin, fenced_claim, fenced_update
from celery_redlock.testing import LocalCluster
from tests.fencing.stress import Load, Store, check, run_stress
from tests.support.waiting import TIMEOUT

WAIT_FOR_LOCK = 60.0


class Base(DeclarativeBase):
    pass


class State(FencedMixin, Base):
    __tablename__ = "stress_state"

    id: Mapped[int] = mapped_column(primary_key=True)
    content: Mapped[bytes | None]


class Row:
    """The row behind the guard; every call is a transaction of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def claim(self, token: int) -> None:
        with Session(self.engine) as session, session.begin():
            fenced_claim(session, State, State.id == 1, token)

    def read(self) -> bytes | None:
        with Session(self.engine) as session:
            return session.get(State, 1).content

    def write(self, content: bytes, token: int) -> None:
        with Session(self.engine) as session, session.begin():
            fenced_update(session, State, State.id == 1, token, {"content": content})


class UnguardedRow(Row):
    """The same row without the guard."""

    def claim(self, token: int) -> None:
        pass

    def write(self, content: bytes, token: int) -> None:
        with Session(self.engine) as session, session.begin():
            session.execute(update(State).where(State.id == 1).values(content=content))


@contextmanager
def open_row(kind: type[Row], url: str) -> Iterator[Store]:
    options: dict[str, Any] = {}
    if url.startswith("sqlite"):
        options["connect_args"] = {"timeout": WAIT_FOR_LOCK}
    engine = create_engine(url, **options)
    if url.startswith("sqlite"):
        # Nobody cuts the power here, and most of the time would go into waiting for the disk.
        event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
    yield kind(engine)
    engine.dispose()


@pytest.fixture
def prepared(engine: Engine, url: str) -> Iterator[str]:
    """The URL of a database with the row."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(State(id=1))
    yield url
    Base.metadata.drop_all(engine)


@pytest.mark.full
@pytest.mark.timeout(10 * TIMEOUT)
def test_no_accepted_write_is_lost_and_the_highest_token_s_write_is_left(
    redlock_cluster: LocalCluster, prepared: str
) -> None:
    load = Load()

    check(run_stress(redlock_cluster.urls, partial(open_row, Row, prepared), load), load)


@pytest.mark.full
@pytest.mark.timeout(10 * TIMEOUT)
def test_without_the_guard_accepted_writes_are_lost(
    redlock_cluster: LocalCluster, prepared: str
) -> None:
    load = Load(processes=4, writes=60, pausing=1.0)
    unguarded = partial(open_row, UnguardedRow, prepared)

    outcome = run_stress(redlock_cluster.urls, unguarded, load)

    assert sum(outcome.counted) < sum(outcome.accepted)
