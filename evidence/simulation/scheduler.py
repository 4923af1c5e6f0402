"""
One event queue in true time, and the machines whose tasks run on it.

True time is what an omniscient observer would measure. Machines see it only through their clocks.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

#: Wall time at the start of every history, in seconds.
EPOCH = 1_750_000_000.0


class Scheduler:
    """Runs what is due, in the order of true time; equal times in the order of asking."""

    def __init__(self) -> None:
        self.now = 0.0
        self.hub = getcurrent()
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = itertools.count()

    def at(self, when: float, call: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self._queue, (when, next(self._sequence), call, args))

    def after(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._sequence), call, args))

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        queue = self._queue
        while queue and queue[0][0] <= until and not stop():
            when, _, call, args = heapq.heappop(queue)
            self.now = max(self.now, when)
            call(*args)
        if not stop():
            self.now = max(self.now, until)


class Clock:
    """
    The clocks of one host.

    Attributes:
        rate: of the oscillator; trust's clock runs at it.
        wall_offset: by which the wall clock is ahead; it can be stepped.
        disciplined: the wall clock is kept at its offset, as NTP does; otherwise it drifts as well.
    """

    __slots__ = ("disciplined", "rate", "scheduler", "wall_offset")

    def __init__(
        self, scheduler: Scheduler, rate: float, wall_offset: float, *, disciplined: bool
    ) -> None:
        self.scheduler = scheduler
        self.rate = rate
        self.wall_offset = wall_offset
        self.disciplined = disciplined

    def wall_us(self) -> int:
        rate = 1.0 if self.disciplined else self.rate
        return round((EPOCH + self.scheduler.now * rate + self.wall_offset) * 1_000_000)


class Task(greenlet):
    """What a thread is on a real machine."""

    def __init__(self, machine: Machine, run: Callable[[], object]) -> None:
        super().__init__(run, parent=machine.scheduler.hub)
        self.machine = machine
        # Each wait has a number, so that a timer of an earlier wait wakes nobody.
        self.ticket = 0


class Machine:
    """
    One operating system process with its clocks; it can be stopped, suspended and killed.

    While it is stopped, what would have woken its tasks is kept, in order, until it goes on.
    """

    def __init__(
        self, scheduler: Scheduler, name: str, seed: str, rate: float, wall_offset: float
    ) -> None:
        self.scheduler = scheduler
        self.name = name
        self.random = random.Random(seed)
        self.clock = Clock(scheduler, rate, wall_offset, disciplined=True)
        self.dead = False
        self.frozen = False
        #: Counts every stop, so that a checker can tell whether a span of time was free of them.
        self.freezes = 0
        self.suspended = 0.0
        #: A checker looks through this machine's eyes; that must not disturb it.
        self.observed = False
        #: Owner values of its attempts.
        self.owners: set[str] = set()
        self._boot = 1000.0 + self.random.random() * 1e5
        self._tasks: list[Task] = []
        self._deferred: list[tuple[Task, int]] = []
        self._trap: tuple[int, float, bool] | None = None

    def spawn(self, run: Callable[[], object]) -> None:
        task = Task(self, run)
        self._tasks = [other for other in self._tasks if not other.dead]
        self._tasks.append(task)
        self.scheduler.after(0.0, self.wake, task, 0)

    def wake(self, task: Task, ticket: int) -> None:
        """Let a task go on; called from the hub only."""
        if task.ticket != ticket or self.dead:
            return
        if self.frozen:
            self._deferred.append((task, ticket))
            return
        task.ticket += 1
        task.switch()

    def wait(self, seconds: float) -> None:
        """Let so many seconds of this machine's clock pass, or less if somebody wakes the task."""
        task = getcurrent()
        self.scheduler.after(max(0.0, seconds) / self.clock.rate, self.wake, task, task.ticket)
        self.leave()

    def leave(self) -> None:
        if self.dead:
            raise GreenletExit
        self.scheduler.hub.switch()
        if self.dead:
            raise GreenletExit

    def boottime(self) -> float:
        """Read the clock that counts suspension; a trap may stop the machine right after it."""
        value = self.peek()
        if self._trap is not None and not self.observed:
            self._spring()
        return value

    def peek(self) -> float:
        """What the clock shows, without the machine's doing anything."""
        return self._boot + self.scheduler.now * self.clock.rate

    def _spring(self) -> None:
        task = getcurrent()
        if not isinstance(task, Task) or task.machine is not self or self._trap is None:
            return
        reads, seconds, suspend = self._trap
        if reads > 0:
            self._trap = (reads - 1, seconds, suspend)
            return
        self._trap = None
        self.freeze(seconds, suspend=suspend)
        self._deferred.append((task, task.ticket))
        self.leave()

    def freeze_at_read(self, reads: int, seconds: float, *, suspend: bool) -> None:
        """Stop at a later reading of the clock: between looking and acting, where it hurts."""
        if not self.dead and not self.frozen:
            self._trap = (reads, seconds, suspend)

    def freeze(self, seconds: float, *, suspend: bool) -> None:
        if self.dead or self.frozen:
            return
        self.frozen = True
        self.freezes += 1
        if suspend:
            self.suspended += seconds * self.clock.rate
        self.scheduler.after(seconds, self.thaw)

    def thaw(self) -> None:
        if not self.frozen or self.dead:
            return
        self.frozen = False
        deferred, self._deferred = self._deferred, []
        for position, (task, ticket) in enumerate(deferred):
            if self.frozen:
                self._deferred.extend(deferred[position:])
                return
            self.wake(task, ticket)

    def kill(self) -> None:
        """End the process: its tasks run no further and nothing that they try has an effect."""
        if self.dead:
            return
        self.dead = True
        for task in self._tasks:
            if not task.dead:
                task.throw(GreenletExit)
        self._tasks.clear()
        self._deferred.clear()
