"""The worker processes: started, frozen, killed, replaced and in the end all gone."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from celery_redlock.testing.child_guardian import ChildGuardian
from evidence.chaos.history import Journal, now
from evidence.chaos.worker import Orders

_ROOT = Path(__file__).resolve().parents[2]
_LONGEST_END = 10.0


class Crew:
    """
    One process in each slot; who is killed is replaced by the next generation.

    All of them are in a process group that ends with this process, however it ends.
    """

    def __init__(
        self,
        orders: Sequence[Orders],
        environments: Sequence[Mapping[str, str]],
        journal: Journal,
        directory: Path,
    ) -> None:
        self._orders = orders
        self._environments = environments
        self._journal = journal
        self._logs = directory
        self._generations = [0] * len(orders)
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * len(orders)
        self._guardian = ChildGuardian(directory)

    def start(self) -> None:
        """Start all of them."""
        for slot in range(len(self._orders)):
            self.replace(slot)

    def replace(self, slot: int) -> None:
        """Start the next generation of a slot."""
        self._generations[slot] += 1
        orders = dataclasses.replace(
            self._orders[slot],
            name=self.name(slot),
            seed=random.Random(f"{self._orders[slot].seed} {self.name(slot)}").getrandbits(48),
        )
        with (self._logs / f"worker-{orders.name}.log").open("wb") as log:
            self._processes[slot] = subprocess.Popen(
                [sys.executable, "-m", "evidence.chaos.worker", orders.encode()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=_ROOT,
                env={**os.environ, **self._environments[slot]},
                process_group=self._guardian.group,
            )

    def name(self, slot: int) -> str:
        """Return the name of the present worker of a slot."""
        return f"{slot}.{self._generations[slot]}"

    def alive(self, slot: int) -> bool:
        """Tell whether the worker of a slot runs or is stopped."""
        return self._process(slot).poll() is None

    def ready(self, slot: int) -> bool:
        """Tell whether the worker of a slot has begun: before that a signal would end it."""
        begun = self._logs / f"worker-{self.name(slot)}.jsonl"
        return begun.exists() and begun.stat().st_size > 0

    def stopped(self, slot: int) -> bool:
        """Tell whether the worker of a slot is stopped."""
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{self._process(slot).pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0] == "T"
        return False

    def freeze(self, slot: int) -> None:
        """Stop a worker."""
        self._journal.note("stopping", worker=self.name(slot))
        self._process(slot).send_signal(signal.SIGSTOP)

    def ask_to_freeze(self, slot: int) -> None:
        """Let a worker that is ready stop itself between check and write."""
        self._process(slot).send_signal(signal.SIGUSR1)

    def note_stopped(self, slot: int, since: float) -> None:
        """Write down that a worker has stopped itself some time after `since`."""
        self._journal.note("stopping", t=since, worker=self.name(slot))

    def go_on(self, slot: int) -> None:
        """Let a stopped worker go on."""
        self._process(slot).send_signal(signal.SIGCONT)
        self._journal.note("continued", worker=self.name(slot))

    def kill(self, slot: int) -> None:
        """Kill a worker."""
        process = self._process(slot)
        process.kill()
        process.wait()
        self._close_stdin(process)
        self._journal.note("killed", worker=self.name(slot))

    def end(self) -> list[str]:
        """Let all finish what they do and end; return the names of those that did not."""
        for process in self._present():
            self._close_stdin(process)
        deadline = now() + _LONGEST_END
        stuck = []
        for slot in range(len(self._processes)):
            # Who was asked to stop itself may do so only now.
            while self.alive(slot) and now() < deadline:
                if self.stopped(slot):
                    self.go_on(slot)
                time.sleep(0.02)
            if self.alive(slot):
                stuck.append(self.name(slot))
        return stuck

    def output(self, slot: int) -> str:
        """Return what the present worker of a slot has printed."""
        return (self._logs / f"worker-{self.name(slot)}.log").read_text(errors="replace")

    def close(self) -> None:
        """Kill what is left."""
        for process in self._present():
            self._close_stdin(process)
            process.kill()
            process.wait()
        self._guardian.kill()

    def _present(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._processes if process is not None]

    def _process(self, slot: int) -> subprocess.Popen[bytes]:
        process = self._processes[slot]
        if process is None:
            raise RuntimeError(f"worker {slot} was never started")
        return process

    @staticmethod
    def _close_stdin(process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None:
            process.stdin.close()
