"""The processes of the task layer: workers and publishers, which also lose a child or are ended."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidence.chaos.crew import Crew, send_signal
from evidence.chaos.history import Journal, now
from evidence.chaos.tasks.kinds import ORDERS
from evidence.chaos.tasks.schedule import POOLS

_CELERY = (sys.executable, "-m", "celery", "--quiet", "-A", "evidence.chaos.tasks.app", "worker")
#: Bodies end within two seconds, and a worker that stops gives back what it has not begun.
_ENDS_WITHIN = 60.0


class TaskCrew(Crew):
    """
    Workers first, one for each pool, then publishers.

    Args:
        orders: what the process in each slot has to know, apart from its name.
        journal: of the nemesis.
        directory: for logs and journals.
    """

    def __init__(
        self, orders: Sequence[Mapping[str, Any]], journal: Journal, directory: Path
    ) -> None:
        super().__init__(len(orders), journal, directory)
        self.workers, self.publishers = self.slots[: len(POOLS)], self.slots[len(POOLS) :]
        self._orders = orders

    def _command(self, slot: int) -> tuple[Sequence[str], Mapping[str, str]]:
        name = self.name(slot)
        command = [sys.executable, "-m", "evidence.chaos.tasks.publisher"]
        if slot in self.workers:
            command = [
                *(*_CELERY, f"--pool={POOLS[slot]}", "--concurrency=2"),
                *("--loglevel=INFO", f"--hostname={name}@chaos"),
                *("--without-mingle", "--without-gossip", "--without-heartbeat"),
            ]
        orders = json.dumps({**self._orders[slot], "name": name})
        return command, {ORDERS: orders, "TMPDIR": str(self._directory)}

    def name(self, slot: int) -> str:
        """Return the name of the present process of a slot."""
        kind, number = ("w", slot) if slot in self.workers else ("p", slot - len(self.workers))
        return f"{kind}{number}.{self._generations[slot]}"

    def ready(self, slot: int) -> bool:
        """Return whether the process of a slot accepts work, or sends it."""
        pattern = f"{self.name(slot)}-*.jsonl"
        return any('"ready"' in path.read_text() for path in self._directory.glob(pattern))

    def kill_child(self, slot: int) -> bool:
        """Kill one child of a worker; return whether it had one."""
        children = self._pids(slot)[1:]
        if not children:
            return False
        victim = children[int(now() * 1000) % len(children)]
        send_signal(victim, signal.SIGKILL)
        self._journal.note("killed", worker=f"{self.name(slot)}/{victim}")
        return True

    def ask_to_end(self, slot: int) -> None:
        """Send SIGTERM: a worker finishes what it has begun, a publisher what it sends."""
        self._journal.note("terminating", worker=self.name(slot))
        send_signal(self._processes[slot].pid, signal.SIGTERM)

    def await_end(self, slot: int) -> Iterator[float]:
        """Yield until a process has ended that was asked to; note a violation if it does not."""
        deadline = now() + _ENDS_WITHIN
        while self.alive(slot):
            if now() > deadline:
                # Publishers print where their threads are, and end.
                send_signal(self._processes[slot].pid, signal.SIGABRT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._processes[slot].wait(5)
                self._journal.note(
                    "violation",
                    rule="workers and publishers end when told to",
                    what=self.name(slot),
                    output=self.output(slot)[-8000:],
                )
                self.kill(slot)
                return
            yield 0.05
        self._close_stdin(slot)
        self._journal.note("terminated", worker=self.name(slot))

    def end(self, slots: Sequence[int]) -> None:
        """Have these processes end, and wait until they have."""
        for slot in slots:
            self.ask_to_end(slot)
        for slot in slots:
            for pause in self.await_end(slot):
                time.sleep(pause)
