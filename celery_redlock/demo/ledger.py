"""
The shared resource: a plain file for each account, with a guard that checks fencing tokens.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from celery_redlock.errors import StaleFencingToken

__all__ = ["Ledger"]


class Ledger:
    """
    Balances in files that nothing protects from a read-modify-write by two at once.

    The newest token seen is kept beside each balance. Whoever comes with an older one is refused,
    at reading as well as at writing: a holder that has only read so far must already be safe from
    the one before it. `flock` covers a single step, never the time between reading and writing, so
    without tokens nothing here prevents a lost update.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open_account(self, account: str) -> None:
        """Make an account with nothing in it."""
        self._directory.mkdir(exist_ok=True)
        (self._directory / account).write_text(json.dumps({"balance": 0, "token": 0}))

    def balance(self, account: str) -> int:
        """Return what is in the file, for people who watch."""
        with self._exclusively(account, None) as file:
            return int(_load(file)["balance"])

    def read(self, account: str, token: int | None) -> int:
        """
        Return the balance to a holder, who comes with a token or without any.

        Raises:
            StaleFencingToken: a newer holder was here.
        """
        with self._exclusively(account, token) as file:
            state = _load(file)
            if token is not None:
                _store(file, {**state, "token": token})
            return state["balance"]

    def write(self, account: str, balance: int, token: int | None) -> None:
        """
        Replace the balance.

        Raises:
            StaleFencingToken: a newer holder was here; the file is as it was.
        """
        with self._exclusively(account, token) as file:
            _store(file, {"balance": balance, "token": token or _load(file)["token"]})

    @contextlib.contextmanager
    def _exclusively(self, account: str, token: int | None) -> Iterator[int]:
        file = os.open(self._directory / account, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            seen = _load(file)["token"]
            if token is not None and token < seen:
                raise StaleFencingToken(
                    f"Account {account} has seen fencing token {seen}; {token} is older, so its "
                    "holder was superseded and nothing is written.",
                    f"account {account}",
                    seen,
                    token,
                )
            yield file
        finally:
            os.close(file)


def _load(file: int) -> dict[str, int]:
    state: dict[str, int] = json.loads(os.pread(file, 4096, 0))
    return state


def _store(file: int, state: dict[str, int]) -> None:
    # Padded to one length, so that one write replaces all there is.
    os.pwrite(file, json.dumps(state).ljust(64).encode(), 0)
