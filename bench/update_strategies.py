"""
The update strategies that `bench.strategies` compares, for a row and for a Redis key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import redis
from sqlalchemy import Engine, create_engine, func, insert, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column
from tenacity import RetryCallState, wait_random_exponential
from tenacity.wait import wait_base

from celery_redlock import Lease, Redlock
from celery_redlock.fencing import RedisFence
from celery_redlock.fencing.sqlalchemy import FencedMixin, fenced_claim, fenced_update
from examples.optimistic import versioned_row, watched_key
from examples.optimistic.versioned_row import Base, VersionedAccount

TIMEOUT = 60.0

Think = Callable[[], object]
#: Takes an account's number and the work to do in between; returns how often it was tried again.
Deposit = Callable[[int, Think], int]


class Account(FencedMixin, Base):
    """An account for the strategies with a lock."""

    __tablename__ = "bench_accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """
    Where balances are kept.

    Attributes:
        url: of the database or the Redis server.
        nodes: the lock nodes.
    """

    url: str
    nodes: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Its name in the table."""
        return self.url.partition(":")[0].partition("+")[0]


def prepare(place: Place, accounts: int) -> None:
    """Set all balances to 0."""
    if place.kind == "redis":
        with redis.Redis.from_url(place.url) as client:
            client.flushall()
        return
    with _engine(place) as engine:
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        with engine.begin() as connection:
            numbers = range(accounts)
            connection.execute(insert(Account), [{"id": n, "balance": 0} for n in numbers])
            rows = [{"id": n, "balance": 0, "version": 1} for n in numbers]
            connection.execute(insert(VersionedAccount), rows)


def total(place: Place, accounts: int) -> int:
    """Return the sum of all balances."""
    if place.kind == "redis":
        with redis.Redis.from_url(place.url) as client:
            return sum(int(client.get(_key(number)) or 0) for number in range(accounts))
    with _engine(place) as engine, Session(engine) as session:
        tables = (Account, VersionedAccount)
        return sum(session.scalar(select(func.sum(t.balance))) or 0 for t in tables)


@contextlib.contextmanager
def unprotected(place: Place) -> Iterator[Deposit]:
    """Read and write as if nobody else did."""
    with _balances(place) as balances:

        def deposit(number: int, think: Think) -> int:
            balance = balances.read(number)
            think()
            balances.write(number, balance + 1)
            return 0

        yield deposit


@contextlib.contextmanager
def locked(place: Place) -> Iterator[Deposit]:
    """Read and write under a lock."""
    with _balances(place) as balances, _locks(place) as take:

        def deposit(number: int, think: Think) -> int:
            lease, again = take(number)
            balance = balances.read(number)
            think()
            balances.write(number, balance + 1)
            lease.release()
            return again

        yield deposit


@contextlib.contextmanager
def fenced(place: Place) -> Iterator[Deposit]:
    """Read and write under a lock, and let the resource check the token."""
    with _balances(place) as balances, _locks(place) as take:

        def deposit(number: int, think: Think) -> int:
            lease, again = take(number)
            token = lease.fencing_token
            balances.claim(number, token)
            balance = balances.read(number)
            think()
            balances.guarded_write(number, balance + 1, token)
            lease.release()
            return again

        yield deposit


@contextlib.contextmanager
def optimistic(place: Place) -> Iterator[Deposit]:
    """Read, and write only if nobody wrote in between; else again."""
    if place.kind == "redis":
        with redis.Redis.from_url(place.url) as client:
            yield lambda number, think: watched_key.deposit(client, _key(number), 1, think)
    else:
        with _engine(place) as engine:
            yield lambda number, think: versioned_row.deposit(engine, number, 1, think)


STRATEGIES: dict[str, Callable[[Place], AbstractContextManager[Deposit]]] = {
    "nothing": unprotected,
    "lock": locked,
    "lock + fence": fenced,
    "optimistic": optimistic,
}


class _Rows:
    """Balances in rows; each call is a transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self, number: int) -> int:
        with Session(self._engine) as session:
            return session.scalars(select(Account.balance).where(Account.id == number)).one()

    def write(self, number: int, balance: int) -> None:
        with Session(self._engine) as session, session.begin():
            session.execute(update(Account).where(Account.id == number).values(balance=balance))

    def claim(self, number: int, token: int) -> None:
        with Session(self._engine) as session, session.begin():
            fenced_claim(session, Account, Account.id == number, token)

    def guarded_write(self, number: int, balance: int, token: int) -> None:
        with Session(self._engine) as session, session.begin():
            fenced_update(session, Account, Account.id == number, token, {"balance": balance})


class _Keys:
    """Balances in keys."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._fence = RedisFence(client)

    def read(self, number: int) -> int:
        return int(self._client.get(_key(number)) or 0)

    def write(self, number: int, balance: int) -> None:
        self._client.set(_key(number), balance)

    def claim(self, number: int, token: int) -> None:
        self._fence.claim(_key(number), token)

    def guarded_write(self, number: int, balance: int, token: int) -> None:
        self._fence.set(_key(number), balance, token)


class _Counting(wait_base):
    """The usual waits between tries, counted."""

    def __init__(self) -> None:
        self.count = 0
        self._waits = wait_random_exponential(multiplier=0.01, max=0.25)

    def __call__(self, retry_state: RetryCallState) -> float:
        self.count += 1
        return self._waits(retry_state)


def _key(number: int) -> str:
    return f"bench:balance:{number}"


@contextlib.contextmanager
def _engine(place: Place) -> Iterator[Engine]:
    # SQLite lets one writer in at a time; the others wait up to this long.
    waiting = {"timeout": TIMEOUT} if place.kind == "sqlite" else {}
    engine = create_engine(place.url, connect_args=waiting)
    yield engine
    engine.dispose()


@contextlib.contextmanager
def _balances(place: Place) -> Iterator[_Rows | _Keys]:
    if place.kind == "redis":
        with redis.Redis.from_url(place.url) as client:
            yield _Keys(client)
    else:
        with _engine(place) as engine:
            yield _Rows(engine)


@contextlib.contextmanager
def _locks(place: Place) -> Iterator[Callable[[int], tuple[Lease, int]]]:
    with Redlock(place.nodes) as redlock:

        def take(number: int) -> tuple[Lease, int]:
            waits = _Counting()
            lease = redlock.acquire(f"account:{number}", wait=TIMEOUT, retry=waits)
            return lease, waits.count

        yield take
