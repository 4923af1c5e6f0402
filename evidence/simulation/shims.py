"""
What the shipped modules find under the names `os`, `time`, `threading` and `select` while they are
simulated. Everything answers for the machine whose task is running.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent

from celery_redlock._greenlets.polling import as_milliseconds
from evidence.simulation.scheduler import EPOCH, Machine, Scheduler

READ, WRITE = 1, 4


class Files:
    """Descriptors of one history, and the machine that is looked at when no task runs."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.by_fd: dict[int, Any] = {}
        self.observed: Machine | None = None
        self._next = 1000

    def add(self, file: Any) -> int:
        self._next += 1
        self.by_fd[self._next] = file
        return self._next

    def machine(self) -> Machine:
        machine = self.observed or getattr(getcurrent(), "machine", None)
        assert machine is not None
        return machine


class WakeupPipe:
    """A `WakeupPipe` that wakes a simulated poll."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._rung = False
        self.pollers: list[Poller] = []
        self.fd = files.add(self)

    def ready(self, _wanted: int) -> int:
        return READ if self._rung else 0

    def wake(self) -> None:
        self._rung = True
        for poller in self.pollers:
            self._files.scheduler.after(0.0, poller.notify)

    def drain(self) -> None:
        self._rung = False

    def wait(self, seconds: float) -> bool:
        poller = Poller(self._files)
        poller.register(self.fd, READ)
        is_woken = bool(poller.poll(as_milliseconds(seconds)))
        self.pollers.remove(poller)
        self.drain()
        return is_woken

    def close(self) -> None:
        self._files.by_fd.pop(self.fd, None)


class Poller:
    """`select.poll` on simulated descriptors."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._events: dict[int, int] = {}
        self._waiting: Any = None

    def register(self, fd: int, events: int) -> None:
        self._events[fd] = events
        pollers = self._files.by_fd[fd].pollers
        if self not in pollers:
            pollers.append(self)

    def modify(self, fd: int, events: int) -> None:
        self._events[fd] = events

    def unregister(self, fd: int) -> None:
        del self._events[fd]

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        ready = self._ready()
        if ready or milliseconds <= 0:
            return ready
        self._waiting = getcurrent()
        try:
            self._files.machine().wait(milliseconds / 1000)
        finally:
            self._waiting = None
        return self._ready()

    def _ready(self) -> list[tuple[int, int]]:
        by_fd = self._files.by_fd
        return [
            (fd, mask) for fd, wanted in self._events.items() if (mask := by_fd[fd].ready(wanted))
        ]

    def notify(self) -> None:
        """Wake who waits; called from the hub."""
        task = self._waiting
        if task is not None:
            task.machine.wake(task, task.ticket)


class Os:
    """`os`, as far as randomness goes; all machines are one process."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def urandom(self, size: int) -> bytes:
        return self._files.machine().random.randbytes(size)

    def getpid(self) -> int:
        return os.getpid()


class Time:
    """`time`: suspension is seen by one clock and not by the other, as on Linux."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME
    CLOCK_MONOTONIC = time.CLOCK_MONOTONIC

    def __init__(self, files: Files) -> None:
        self._files = files

    def clock_gettime(self, which: int) -> float:
        machine = self._files.machine()
        read = machine.boottime()
        return read if which == self.CLOCK_BOOTTIME else read - machine.suspended

    def monotonic(self) -> float:
        return self.clock_gettime(self.CLOCK_MONOTONIC)

    def time_ns(self) -> int:
        return self._files.machine().clock.wall_us() * 1000

    def time(self) -> float:
        return EPOCH + self._files.scheduler.now

    def sleep(self, seconds: float) -> None:
        self._files.machine().wait(seconds)


class Threading:
    """`threading`: a thread is a task of the machine that starts it."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._native: weakref.WeakSet[Any] = weakref.WeakSet()

    def Thread(self, *, target: Callable[[], object], **_: Any) -> Any:  # noqa: N802 - its name
        return SimpleNamespace(start=lambda: self._files.machine().spawn(target))

    def unpatched(self, module: str, name: str) -> Any:
        """What a native thread takes from a standard module, see `_greenlets.unpatched`."""
        if (module, name) == ("_thread", "get_ident"):
            return lambda: id(getcurrent())
        assert (module, name) == ("time", "sleep")
        return Time(self._files).sleep

    def start_native_thread(self, run: Callable[[], object], *_: Any) -> None:
        def run_native() -> None:
            self._native.add(getcurrent())
            run()

        self._files.machine().spawn(run_native)

    def on_native_thread(self) -> bool:
        return getcurrent() in self._native
