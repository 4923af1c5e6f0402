"""
What the workers read, change and write: a number in a file, with or without a fencing guard.

Each file is a row of records of one length, and the last one is the present state. A record is
written in one call under a file lock, so neither a kill nor another process can tear it. The file
lock covers single steps only, never the time between reading and writing: without tokens it
prevents no lost update, but it lets every write say exactly what it overwrote.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from evidence.chaos.history import now

_LENGTH = 320


class Refused(Exception):
    """The guard has seen a newer token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """
    One step at a resource, and its state after the step.

    Attributes:
        step: `read`, `write` or `refused`.
        hold: on whose behalf; empty for the first record.
        token: the token that came with it; 0 without one.
        base: of a write, the write that it had read.
        over: of a write, the write that it replaced.
        value: the number after the step.
        latest: the write that made it so.
        highest: the highest token that the guard has seen.
    """

    t: float
    step: str
    hold: str
    token: int = 0
    base: str = ""
    over: str = ""
    value: int = 0
    latest: str = "0"
    highest: int = 0


class Resource:
    """One number. Steps with a token are guarded, steps without one are not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        """Make the number 0."""
        self.path.write_bytes(_encode(Record(t=now(), step="write", hold="")))

    def read(self, hold: str, token: int = 0) -> Record:
        """
        Return the state; with a token, older ones are refused from now on.

        Raises:
            Refused: the token is older than one that was seen.
        """
        with self._locked() as file:
            last = _last(file)
            if token:
                self._guard(file, last, hold, token)
                self._append(file, last, step="read", hold=hold, token=token, highest=token)
            return last

    def write(self, hold: str, read: Record, token: int = 0) -> None:
        """
        Write the number that was read plus one, whatever is there by now.

        Raises:
            Refused: the token is older than one that was seen; nothing is written.
        """
        with self._locked() as file:
            last = _last(file)
            if token:
                self._guard(file, last, hold, token)
            self._append(
                file,
                last,
                step="write",
                hold=hold,
                token=token,
                base=read.latest,
                over=last.latest,
                value=read.value + 1,
                latest=hold,
                highest=max(token, last.highest),
            )

    def records(self) -> list[Record]:
        """Return all steps in order."""
        data = self.path.read_bytes()
        return [
            Record(**json.loads(data[start : start + _LENGTH]))
            for start in range(0, len(data), _LENGTH)
        ]

    def _guard(self, file: int, last: Record, hold: str, token: int) -> None:
        if token < last.highest:
            self._append(file, last, step="refused", hold=hold, token=token)
            raise Refused

    def _append(self, file: int, last: Record, **changes: object) -> None:
        state = {**asdict(last), "t": now(), "base": "", "over": "", **changes}
        os.write(file, _encode(Record(**state)))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _last(file: int) -> Record:
    size = os.fstat(file).st_size
    return Record(**json.loads(os.pread(file, _LENGTH, size - _LENGTH)))


def _encode(record: Record) -> bytes:
    return json.dumps(asdict(record)).ljust(_LENGTH - 1).encode() + b"\n"
