"""The processes of the task layer: workers and publishers, frozen, ended, killed and replaced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from celery_redlock.testing.child_guardian import ChildGuardian
from evidence.chaos.history import Journal, now
from evidence.chaos.tasks.kinds import ORDERS

_ROOT = Path(__file__).resolve().parents[3]
_CELERY = (sys.executable, "-m", "celery", "--quiet", "-A", "evidence.chaos.tasks.app", "worker")
#: Bodies end within two seconds, and a worker that stops gives back what it has not begun.
_ENDS_WITHIN = 60.0


class Crew:
    """
    One process in each slot, workers first; who is gone is replaced by the next generation.

    Args:
        pools: the pool of each worker.
        publishers: how many publishers there are.
        orders: what the process in each slot has to know, apart from its name.
        journal: of the nemesis.
        directory: for logs and journals.
    """

    def __init__(
        self,
        pools: Sequence[str],
        publishers: int,
        orders: Sequence[Mapping[str, Any]],
        journal: Journal,
        directory: Path,
    ) -> None:
        self.workers = range(len(pools))
        self.publishers = range(len(pools), len(pools) + publishers)
        self._pools = pools
        self._orders = orders
        self._journal = journal
        self._directory = directory
        self._generations = [0] * len(orders)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._guardian = ChildGuardian(directory)

    def replace(self, slot: int) -> None:
        """Start the next generation of a slot."""
        self._generations[slot] += 1
        name = self.name(slot)
        orders = {**self._orders[slot], "name": name}
        command = [sys.executable, "-m", "evidence.chaos.tasks.publisher"]
        if slot in self.workers:
            command = [
                *(*_CELERY, f"--pool={self._pools[slot]}", "--concurrency=2"),
                *("--loglevel=INFO", f"--hostname={name}@chaos"),
                *("--without-mingle", "--without-gossip", "--without-heartbeat"),
            ]
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes[slot] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=_ROOT,
                env={**os.environ, ORDERS: json.dumps(orders), "TMPDIR": str(self._directory)},
                process_group=self._guardian.group,
            )
        self._journal.note("starting", worker=name)

    def name(self, slot: int) -> str:
        """Return the name of the present process of a slot."""
        kind, number = ("w", slot) if slot in self.workers else ("p", slot - len(self.workers))
        return f"{kind}{number}.{self._generations[slot]}"

    def alive(self, slot: int) -> bool:
        """Return whether the process of a slot runs or is stopped."""
        return self._processes[slot].poll() is None

    def ready(self, slot: int) -> bool:
        """Return whether the process of a slot accepts work, or sends it."""
        pattern = f"{self.name(slot)}-*.jsonl"
        return any('"ready"' in path.read_text() for path in self._directory.glob(pattern))

    def freeze(self, slot: int) -> None:
        """Stop a process and its children."""
        self._journal.note("stopping", worker=self.name(slot))
        for pid in self._pids(slot):
            _signal(pid, signal.SIGSTOP)

    def go_on(self, slot: int) -> None:
        """Let a stopped process and its children go on."""
        for pid in self._pids(slot):
            _signal(pid, signal.SIGCONT)
        self._journal.note("continued", worker=self.name(slot))

    def kill(self, slot: int) -> None:
        """Kill a process and its children."""
        # The children first: without their parent they could not be found.
        for pid in reversed(self._pids(slot)):
            _signal(pid, signal.SIGKILL)
        self._processes[slot].wait()
        self._close_stdin(slot)
        self._journal.note("killed", worker=self.name(slot))

    def kill_child(self, slot: int) -> bool:
        """Kill one child of a worker; return whether it had one."""
        children = self._pids(slot)[1:]
        if not children:
            return False
        victim = children[int(now() * 1000) % len(children)]
        _signal(victim, signal.SIGKILL)
        self._journal.note("killed", worker=f"{self.name(slot)}/{victim}")
        return True

    def ask_to_end(self, slot: int) -> None:
        """Send SIGTERM: a worker finishes what it has begun, a publisher what it sends."""
        self._journal.note("terminating", worker=self.name(slot))
        _signal(self._processes[slot].pid, signal.SIGTERM)

    def await_end(self, slot: int) -> Iterator[float]:
        """Yield until a process has ended that was asked to; note a violation if it does not."""
        deadline = now() + _ENDS_WITHIN
        while self.alive(slot):
            if now() > deadline:
                # Publishers print where their threads are, and end.
                _signal(self._processes[slot].pid, signal.SIGABRT)
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

    def output(self, slot: int) -> str:
        """Return what the present process of a slot has printed."""
        return (self._directory / f"{self.name(slot)}.log").read_text(errors="replace")

    def close(self) -> None:
        """Kill what is left."""
        for slot in self._processes:
            self._close_stdin(slot)
        self._guardian.kill()
        for process in self._processes.values():
            process.wait()

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


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
