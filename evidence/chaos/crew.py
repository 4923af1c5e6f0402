"""The processes of a run: started, frozen, killed, replaced and in the end all gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from celery_redlock.testing.resources import ChildGuardian
from evidence.chaos.history import Journal

_ROOT = Path(__file__).resolve().parents[2]


class Crew(ABC):
    """
    One process in each slot; who is gone is replaced by the next generation.

    All of them are in a process group that ends with this process, however it ends.

    Args:
        slots: how many there are.
        journal: of the nemesis.
        directory: for logs and journals.
    """

    def __init__(self, slots: int, journal: Journal, directory: Path) -> None:
        self.slots = range(slots)
        self._journal = journal
        self._directory = directory
        self._generations = [0] * slots
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._guardian = ChildGuardian(directory)

    @abstractmethod
    def _command(self, slot: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return what the next process of a slot runs, and its environment beside this one's."""

    @abstractmethod
    def ready(self, slot: int) -> bool:
        """Return whether the process of a slot has begun."""

    def name(self, slot: int) -> str:
        """Return the name of the present process of a slot."""
        return f"{slot}.{self._generations[slot]}"

    def replace(self, slot: int) -> None:
        """Start the next generation of a slot."""
        self._generations[slot] += 1
        command, environment = self._command(slot)
        with self._log(slot).open("wb") as log:
            self._processes[slot] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=_ROOT,
                env={**os.environ, **environment},
                process_group=self._guardian.group,
            )
        self._journal.note("starting", worker=self.name(slot))

    def alive(self, slot: int) -> bool:
        """Return whether the process of a slot runs or is stopped."""
        return self._processes[slot].poll() is None

    def output(self, slot: int) -> str:
        """Return what the present process of a slot has printed."""
        return self._log(slot).read_text(errors="replace")

    def freeze(self, slot: int) -> None:
        """Stop a process and its children."""
        self._journal.note("stopping", worker=self.name(slot))
        for pid in self._pids(slot):
            send_signal(pid, signal.SIGSTOP)

    def go_on(self, slot: int) -> None:
        """Let a stopped process and its children go on."""
        for pid in self._pids(slot):
            send_signal(pid, signal.SIGCONT)
        self._journal.note("continued", worker=self.name(slot))

    def kill(self, slot: int) -> None:
        """Kill a process and its children."""
        # The children first: without their parent they could not be found.
        for pid in reversed(self._pids(slot)):
            send_signal(pid, signal.SIGKILL)
        self._processes[slot].wait()
        self._close_stdin(slot)
        self._journal.note("killed", worker=self.name(slot))

    def close(self) -> None:
        """Kill what is left."""
        for slot in self._processes:
            self._close_stdin(slot)
        self._guardian.kill()
        for process in self._processes.values():
            process.wait()

    def _log(self, slot: int) -> Path:
        return self._directory / f"{self.name(slot)}.log"

    def _pids(self, slot: int) -> list[int]:
        """Return the process of a slot, then its children."""
        parent = self._processes[slot].pid
        children = []
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
            children = [int(pid) for pid in text.split()]
        return [parent, *children]

    def _close_stdin(self, slot: int) -> None:
        stdin = self._processes[slot].stdin
        if stdin is not None:
            stdin.close()


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process, if there is one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
