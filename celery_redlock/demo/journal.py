"""
What bodies say about themselves, out of band: the demo judges by it, never by the lock.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["Journal", "Reader"]

# Divides a page: a kernel may show, or stop in, an append where it goes on to another page.
_LENGTH = 512


class Journal:
    """
    A file, there already, to which several processes append one record for each event.

    A record is a single append of 512 bytes, so records of different processes never mix, and one
    is there either whole or not at all when its writer is killed. Times are of one clock for all
    processes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, event: str, **facts: Any) -> None:
        """
        Append a record; it is in the file when this returns.

        Raises:
            ValueError: the facts do not fit into a record.
        """
        record = json.dumps({"event": event, "at": time.monotonic(), **facts}).encode()
        if len(record) >= _LENGTH:
            raise ValueError(f"{event!r} has {len(record)} bytes, a record holds {_LENGTH - 1}")
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, record.ljust(_LENGTH - 1) + b"\n")
        finally:
            os.close(file)


class Reader:
    """Follows a journal."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._begun = b""

    def new_records(self) -> list[dict[str, Any]]:
        """Return what was appended since the last call; a record half there waits for its end."""
        *records, self._begun = (self._begun + self._file.read()).split(b"\n")
        return [json.loads(record) for record in records]

    def close(self) -> None:
        """Stop following."""
        self._file.close()
