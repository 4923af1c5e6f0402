"""
Lock, fence and optimistic locking side by side: `python -m bench.strategies`.

Several processes add to balances, with a little work between reading and writing. Under low
contention each picks one of many accounts, under high contention all use the same one. A Redis
server and five lock nodes are started here, and a PostgreSQL server where that is installed
(otherwise the rows are in SQLite, and `--database` names one that runs already).
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.update_strategies import STRATEGIES, Place, prepare, total
from celery_redlock.testing import LocalCluster
from tests.support.postgres import postgres_programs, running_postgres

MANY, ONE = 1000, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """
    The work of each process.

    Attributes:
        processes: the number of processes.
        seconds: the time that each of them works.
        think: seconds of work between reading and writing.
        accounts: how many there are to choose from.
    """

    processes: int
    seconds: float
    think: float
    accounts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """
    The outcome of all processes.

    Attributes:
        rate: deposits per second.
        again: retries of a deposit, on average.
        slowest: seconds that 99 of 100 deposits took at most.
        lost: reported deposits that are missing from the balances, of all rounds.
    """

    rate: float
    again: float
    slowest: float
    lost: int


def main() -> None:
    """Measure each way in each place, and print the table."""
    arguments = _arguments()
    context = multiprocessing.get_context("spawn")
    with (
        _places(arguments.database) as places,
        context.Pool(arguments.processes) as pool,
    ):
        for title, accounts in (("low", MANY), ("high", ONE)):
            load = Load(
                processes=arguments.processes,
                seconds=arguments.seconds,
                think=arguments.think,
                accounts=accounts,
            )
            rows = _measure_all(pool, places, load, arguments.rounds)
            _print(f"{title} contention: {accounts} account(s)", rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.strategies", description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="the result is their median")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each way in each round")
    parser.add_argument("--think", type=float, default=0.005, help="seconds of work in between")
    parser.add_argument("--database", help="SQLAlchemy URL; its tables bench_* are dropped")
    return parser.parse_args()


@contextlib.contextmanager
def _places(database: str | None) -> Iterator[Sequence[Place]]:
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(LocalCluster(5)).urls
        server = stack.enter_context(LocalCluster(1, armed=False)).urls[0]
        if database is None and postgres_programs() is not None:
            database = f"postgresql+psycopg://{stack.enter_context(running_postgres())}"
        elif database is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            database = f"sqlite:///{directory / 'bench.sqlite'}"
        yield [Place(url=url, nodes=tuple(nodes)) for url in (database, server)]


def _measure_all(
    pool: Pool, places: Sequence[Place], load: Load, rounds: int
) -> Iterator[tuple[str, str, Measured]]:
    """Measure all strategies in turns, so that other load on the machine affects all of them."""
    for place in places:
        taken: dict[str, list[Measured]] = {name: [] for name in STRATEGIES}
        for _ in range(rounds):
            for name in STRATEGIES:
                taken[name].append(_measure(pool, place, name, load))
        for name, measured in taken.items():
            yield place.kind, name, _middle(measured)


def _measure(pool: Pool, place: Place, name: str, load: Load) -> Measured:
    prepare(place, load.accounts)
    # Nobody begins before everybody is there.
    begin = time.time() + 1.0
    calls = [(place, name, load, number, begin) for number in range(load.processes)]
    done = [taken for of_one in pool.starmap(_work, calls, chunksize=1) for taken in of_one]
    times = [seconds for seconds, _ in done]
    return Measured(
        rate=len(done) / load.seconds,
        again=statistics.fmean(again for _, again in done),
        slowest=statistics.quantiles(times, n=100)[98],
        lost=len(done) - total(place, load.accounts),
    )


def _middle(measured: Sequence[Measured]) -> Measured:
    return Measured(
        rate=statistics.median(one.rate for one in measured),
        again=statistics.median(one.again for one in measured),
        slowest=statistics.median(one.slowest for one in measured),
        lost=sum(one.lost for one in measured),
    )


def _work(
    place: Place, name: str, load: Load, number: int, begin: float
) -> list[tuple[float, int]]:
    """Deposit until the time is over; return what each deposit took and its retries."""
    chance = random.Random(number)  # noqa: S311 - no secret
    done = []
    with STRATEGIES[name](place) as deposit:
        time.sleep(max(0.0, begin - time.time()))
        end = time.perf_counter() + load.seconds
        while (begun := time.perf_counter()) < end:
            again = deposit(chance.randrange(load.accounts), lambda: time.sleep(load.think))
            done.append((time.perf_counter() - begun, again))
    return done


def _print(title: str, rows: Iterator[tuple[str, str, Measured]]) -> None:
    table = Table(title=title)
    for column in ("in", "way", "deposits/s", "retries each", "p99", "lost"):
        table.add_column(column, justify="left" if column in {"in", "way"} else "right")
    for place, way, measured in rows:
        table.add_row(
            place,
            way,
            f"{measured.rate:.0f}",
            f"{measured.again:.2f}",
            f"{measured.slowest * 1000:.0f} ms",
            str(measured.lost),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
