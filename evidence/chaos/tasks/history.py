"""What happened in the task layer: calls, the bodies that ran for them, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_redlock import is_skipped
from evidence.chaos.history import Event, History
from evidence.chaos.tasks.kinds import SKIPPED, Kind

FOREVER = float("inf")


@dataclass(slots=True, kw_only=True)
class Body:
    """
    One run of a body.

    Attributes:
        retries: how often the task had been retried before.
        process: where it ran: `<worker>/<pid>`.
        arrived: when the process began with its message; its lock comes after that.
        until: end of the trust in its lease as last seen; None without a lease.
        ended: when it ended by itself; None if it never did.
        how: how it ended: `done`, `retry`, `lost`, `lost in retry`, `broken off`.
        killed: when its process was killed, if it was while it ran.
    """

    name: str
    call: str
    id: str
    kind: Kind
    key: str
    retries: int
    process: str
    began: float
    arrived: float = 0.0
    token: int | None = None
    until: float | None = None
    ended: float | None = None
    how: str = ""
    killed: float | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def end(self) -> float:
        """When it ended, whatever ended it."""
        return min(end for end in (self.ended, self.killed, FOREVER) if end is not None)


@dataclass(slots=True, kw_only=True)
class Call:
    """
    One call of a unique task.

    Attributes:
        form: how it was sent: `plain`, `named`, `linked`, `group`, `chord`, `chain`, `step`.
        sending: when its publisher began; of a step, when the task before it had ended.
        sent: when its publisher had the answer; None if it never had.
        answer: `accepted`, `duplicate` or `refused`; "" without an answer.
        id: its task id; for a duplicate the id of the task that it was answered for.
        knows: tasks that its publisher knew to have ended.
        bodies: those that ran for it, in order.
    """

    name: str
    kind: Kind
    key: str
    form: str
    sending: float
    sent: float | None = None
    answer: str = ""
    id: str = ""
    knows: tuple[str, ...] = ()
    bodies: list[Body] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        """Whether its publisher was told that this call is to run."""
        return self.answer == "accepted"

    @property
    def lines(self) -> list[Event]:
        """The lines that show what became of it."""
        return [*self.events, *(event for body in self.bodies for event in body.events)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A task that has to run when these calls have succeeded: a link, or the body of a chord."""

    name: str
    id: str
    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """
    A key that a node had at the end.

    Attributes:
        left: seconds for which it would have stayed.
        clock: wall time less the clock of the histories.
    """

    node: int
    key: str
    value: str
    left: float
    clock: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHistory:
    """
    All that the checks look at.

    Attributes:
        calls: by name.
        states: what the result backend had in the end, by task id.
        left: the keys that stood on the nodes when everything had ended.
        waiting: ids of messages that the broker still had.
        troubles: when something was wrong: from, until.
        by_key: the calls of each key, in the order in which they were sent.
        by_task: the events of each task id.
        kills: which worker or process was killed when.
        events: all lines.
    """

    calls: Mapping[str, Call]
    followers: list[Follower]
    states: Mapping[str, Mapping[str, Any]]
    left: list[Left]
    waiting: set[str]
    troubles: list[tuple[float, float]]
    by_key: Mapping[str, list[Call]]
    by_task: Mapping[str, list[Event]]
    kills: list[tuple[str, float]]
    locks: History
    events: list[Event]

    @property
    def bodies(self) -> list[Body]:
        """All bodies, in order."""
        found = [body for call in self.calls.values() for body in call.bodies]
        return sorted(found, key=lambda body: body.began)

    def calm(self, start: float, end: float) -> bool:
        """Return whether nothing was wrong at any time between."""
        return all(until < start or since > end for since, until in self.troubles)

    def killed_at(self, process: str) -> float | None:
        """Return when a process was killed, alone or with its worker."""
        return killed_at(self.kills, process)

    def times(self, event: str, task_id: str) -> list[float]:
        """Return when this was noted of a task."""
        return [each["t"] for each in self.by_task.get(task_id, ()) if each["event"] == event]

    def bodies_of(self, task_id: str) -> list[Body]:
        """Return the bodies that ran for a task id."""
        names = {
            event["call"] for event in self.by_task.get(task_id, ()) if event["event"] == "began"
        }
        return [body for name in names for body in self.calls[name].bodies if body.id == task_id]


def is_skip(state: Mapping[str, Any] | None) -> bool:
    """Return whether a task ended as a duplicate, by what the result backend has of it."""
    if state is None or state["status"] != "SUCCESS":
        return False
    return state["result"] == SKIPPED or is_skipped(state["result"])


def task_of(owner: str) -> str:
    """Return whose an owner value is: it reads `<entropy> <µs> <role> <task id> ...`."""
    return (owner.split(" ") + [""] * 4)[3]


def killed_at(kills: list[tuple[str, float]], process: str) -> float | None:
    """Return when a process was killed, alone or with its worker, by these kills."""
    return min((t for worker, t in kills if is_in(process, worker)), default=None)


def is_in(process: str, worker: str) -> bool:
    """Return whether a process is this one, or belongs to this worker."""
    return process == worker or process.startswith(f"{worker}/")
