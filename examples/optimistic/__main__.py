"""
Eight threads deposit into one account at once: `python -m examples.optimistic`.

It needs no server: the row is in a temporary SQLite file, and the Redis server is an embedded one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import redis
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from celery_redlock.testing import LocalCluster
from examples.optimistic import versioned_row, watched_key

THREADS = 8
DEPOSITS = 25


def main() -> None:
    """Run both examples and compare the balances with what was deposited."""
    with tempfile.TemporaryDirectory() as directory:
        report("version column", *rows(Path(directory) / "bank.sqlite"))
    report("WATCH/MULTI/EXEC", *keys())


def rows(path: Path) -> tuple[int, int]:
    """Deposit into a row; return the balance and how often a deposit was done again."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 30})
    versioned_row.Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(versioned_row.VersionedAccount(id=1))
    again = at_once(partial(versioned_row.deposit, engine, 1, 1))
    with Session(engine) as session:
        balance = session.scalars(select(versioned_row.VersionedAccount.balance)).one()
    engine.dispose()
    return balance, again


def keys() -> tuple[int, int]:
    """Deposit into a key; return the balance and how often a deposit was done again."""
    with LocalCluster(1, armed=False) as server, redis.Redis.from_url(server.urls[0]) as client:
        again = at_once(partial(watched_key.deposit, client, "balance:1", 1))
        return int(client.get("balance:1") or 0), again


def at_once(deposit: Callable[[], int]) -> int:
    """Deposit from all threads; return how often a deposit was done again."""
    with ThreadPoolExecutor(THREADS) as threads:
        return sum(threads.map(lambda _: deposit(), range(THREADS * DEPOSITS)))


def report(way: str, balance: int, again: int) -> None:
    """Print what came of it."""
    made = THREADS * DEPOSITS
    print(f"{way}: {made} deposits of 1, balance {balance}, done again {again} times")
    if balance != made:
        raise SystemExit(f"{way}: {made - balance} deposits were lost")


if __name__ == "__main__":
    main()
