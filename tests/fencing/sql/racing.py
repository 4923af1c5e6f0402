"""Many processes that write the same few rows, each call with a token of its own."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import Session

from celery_redlock.errors import StaleFencingToken
from celery_redlock.fencing.sqlalchemy import fenced_claim, fenced_update
from tests.fencing.sql.models import Account

#: How many rows a call writes that writes several.
ROWS = 4

#: By how much a holder's token may lie behind the newest one.
LATE = 3

WAIT_FOR_LOCK = 60.0

#: Adds to the rows under a token; the text names the call.
Call = Callable[[Engine, int, str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The names of the calls that were let in, and of those that were refused."""

    accepted: list[str]
    refused: list[str]


def race(url: str, call: Call, *, processes: int, calls: int, **options: Any) -> Ends:
    """Let processes make calls, and return how all of them ended."""
    context = multiprocessing.get_context("spawn")
    newest = context.Value("q", 0)
    arguments = (newest, url, options)
    with context.Pool(processes, initializer=_start, initargs=arguments) as pool:
        ends = pool.starmap(_calls, [(call, number, calls) for number in range(processes)], 1)
        pool.close()
        pool.join()
    return Ends(
        accepted=[name for end in ends for name in end.accepted],
        refused=[name for end in ends for name in end.refused],
    )


def deposit(engine: Engine, token: int, name: str) -> None:
    """Add 1 to the first balance by the documented recipe, after a check of who owns it."""
    with Session(engine) as session, session.begin():
        checked = session.get(Account, 1)
        assert checked.owner == "nobody"
        fenced_claim(session, Account, Account.id == 1, token)
        account = session.get(Account, 1)
        account.balance += 1


def write(engine: Engine, token: int, name: str) -> None:
    """Leave the call's name in all rows or, every other time, in one."""
    where = Account.id == token % ROWS + 1 if token % 2 else Account.id <= ROWS
    with engine.connect() as connection:
        fenced_update(connection, Account, where, token, {"owner": name})


def _start(newest: Any, url: str, options: dict[str, Any]) -> None:
    global _newest, _engine
    _newest, _engine = newest, create_engine(url, **options)
    if url.startswith("sqlite"):
        event.listen(_engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))


def _calls(call: Call, number: int, calls: int) -> Ends:
    chance = random.Random(number)
    ends = Ends(accepted=[], refused=[])
    for turn in range(calls):
        with _newest.get_lock():
            _newest.value += 1
            token = max(1, _newest.value - chance.randint(0, LATE))
        name = f"{number}-{turn}"
        try:
            call(_engine, token, name)
        except StaleFencingToken:
            ends.refused.append(name)
        else:
            ends.accepted.append(name)
    return ends
