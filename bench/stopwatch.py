"""
Times noted by several processes, in a file that all of them map into memory.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path
from typing import Self

_TIME = struct.Struct("d")


class Stopwatch:
    """One place for a time for each of so many events."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._places = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, path: Path, places: int) -> Self:
        """Make the file, with no time noted."""
        path.write_bytes(bytes(places * _TIME.size))
        return cls(path)

    def __len__(self) -> int:
        return len(self._places) // _TIME.size

    def note(self, place: int) -> None:
        """Note that an event happens now; the clock is the same in all processes."""
        _TIME.pack_into(self._places, place * _TIME.size, time.monotonic())

    def reset(self) -> None:
        """Forget all times."""
        self._places[:] = bytes(len(self._places))

    @property
    def complete(self) -> bool:
        """Whether every event has happened."""
        return all(self._times())

    def rate(self) -> float:
        """Return events per second from the first to the last."""
        times = self._times()
        return (len(times) - 1) / (max(times) - min(times))

    def _times(self) -> list[float]:
        return [time_ for (time_,) in _TIME.iter_unpack(self._places[:])]
