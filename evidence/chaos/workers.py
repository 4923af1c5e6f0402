"""The worker processes of the lock layer, which can be asked to stop themselves, and end alone."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidence.chaos.crew import Crew
from evidence.chaos.history import Journal, now
from evidence.chaos.worker import Orders

_LONGEST_END = 10.0


class WorkerCrew(Crew):
    """The workers of the lock layer, by the orders and environments of their slots."""

    def __init__(
        self,
        orders: Sequence[Orders],
        environments: Sequence[Mapping[str, str]],
        journal: Journal,
        directory: Path,
    ) -> None:
        super().__init__(len(orders), journal, directory)
        self._orders = orders
        self._environments = environments

    def _command(self, slot: int) -> tuple[Sequence[str], Mapping[str, str]]:
        name = self.name(slot)
        seed = random.Random(f"{self._orders[slot].seed} {name}").getrandbits(48)
        orders = dataclasses.replace(self._orders[slot], name=name, seed=seed)
        command = [sys.executable, "-m", "evidence.chaos.worker", orders.encode()]
        return command, self._environments[slot]

    def ready(self, slot: int) -> bool:
        """Return whether the worker of a slot has begun: before that a signal would end it."""
        begun = self._directory / f"worker-{self.name(slot)}.jsonl"
        return begun.exists() and begun.stat().st_size > 0

    def stopped(self, slot: int) -> bool:
        """Return whether the worker of a slot is stopped."""
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{self._processes[slot].pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0] == "T"
        return False

    def ask_to_freeze(self, slot: int) -> None:
        """Let a worker that is ready stop itself between check and write."""
        self._processes[slot].send_signal(signal.SIGUSR1)

    def note_stopped(self, slot: int, since: float) -> None:
        """Write down that a worker has stopped itself some time after `since`."""
        self._journal.note("stopping", t=since, worker=self.name(slot))

    def end(self) -> list[str]:
        """Let all finish what they do and end; return the names of those that did not."""
        for slot in self.slots:
            self._close_stdin(slot)
        deadline = now() + _LONGEST_END
        stuck = []
        for slot in self.slots:
            # Who was asked to stop itself may do so only now.
            while self.alive(slot) and now() < deadline:
                if self.stopped(slot):
                    self.go_on(slot)
                time.sleep(0.02)
            if self.alive(slot):
                stuck.append(self.name(slot))
        return stuck
