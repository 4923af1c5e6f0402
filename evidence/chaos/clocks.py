"""Wall clocks of other processes, set and sped while they run (see clockshim.c)."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

_SOURCE = Path(__file__).with_name("clockshim.c")
_NUMBER = struct.Struct("=q")
_FIELDS = struct.Struct("=qqq")


def build_shim(directory: Path) -> Path | None:
    """Compile the preload library; None where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = directory / "clockshim.so"
    command = [compiler, "-O2", "-fPIC", "-shared", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Clock:
    """The wall clock of one process, which has to be started with `environment`."""

    def __init__(self, path: Path, shim: Path) -> None:
        self.environment = {"LD_PRELOAD": str(shim), "CHAOS_CLOCK": str(path)}
        self._version = 0
        self._ppm = 0
        self._real_base = self._wall_base = time.time_ns()
        path.write_bytes(b"\0" * mmap.PAGESIZE)
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._publish()

    def step(self, seconds: float) -> None:
        """Let the clock jump."""
        self._rebase()
        self._wall_base += int(seconds * 1e9)
        self._publish()

    def run_at(self, ppm: int) -> None:
        """Let the clock run faster by so many millionths, without a jump."""
        self._rebase()
        self._ppm = ppm
        self._publish()

    def close(self) -> None:
        """Let go of the shared memory; the process keeps the clock as it is."""
        self._shared.close()

    def _rebase(self) -> None:
        real = time.time_ns()
        passed = real - self._real_base
        self._wall_base += passed + int(passed * self._ppm / 1e6)
        self._real_base = real

    def _publish(self) -> None:
        self._shared[:8] = _NUMBER.pack(self._version + 1)
        self._shared[8:32] = _FIELDS.pack(self._real_base, self._wall_base, self._ppm)
        self._version += 2
        self._shared[:8] = _NUMBER.pack(self._version)


def write_launcher(path: Path, binary: str, environment: dict[str, str]) -> Path:
    """Write a program that runs `binary` with these variables, as the same process."""
    settings = " ".join(f"{name}='{value}'" for name, value in environment.items())
    path.write_text(f"#!/bin/sh\nexec env {settings} '{binary}' \"$@\"\n")
    os.chmod(path, 0o755)
    return path
