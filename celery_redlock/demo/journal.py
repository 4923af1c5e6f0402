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


class Journal:
    """
    A file, there already, to which several processes append one record for each event.

    A record is a single append, so records of different processes never mix, and one is there
    either whole or not at all when its writer is killed. Times are of one clock for all processes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, event: str, **facts: Any) -> None:
        """Append a record; it is in the file when this returns."""
        line = json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


class Reader:
    """Follows a journal."""

    def __init__(self, path: Path) -> None:
        self._file = path.open()

    def new_records(self) -> list[dict[str, Any]]:
        """Return what was appended since the last call."""
        return [json.loads(line) for line in self._file.readlines()]

    def close(self) -> None:
        """Stop following."""
        self._file.close()
