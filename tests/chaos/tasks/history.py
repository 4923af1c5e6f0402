"""What happened in the task layer: calls, the bodies that ran for them, and what went wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos import history as lock_layer
from tests.chaos.history import Event, History, Hold
from tests.chaos.tasks.kinds import KINDS, SKIPPED, Kind
from tests.chaos.tasks.notes import STALLED

#: After a fault is mended, clients may still leave the node out for a while.
_AFTERMATH = 1.0
#: Seconds without running after which a process counts as faulty: the one with the proxies makes
#: every node slow, any other one is only late itself.
_HARNESS_STALLED = 0.15
_STALLED = 0.5

_FOREVER = float("inf")


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
        return min(end for end in (self.ended, self.killed, _FOREVER) if end is not None)


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
        return _killed_at(self.kills, process)

    def times(self, event: str, task_id: str) -> list[float]:
        """Return when this was noted of a task."""
        return [each["t"] for each in self.by_task.get(task_id, ()) if each["event"] == event]

    def bodies_of(self, task_id: str) -> list[Body]:
        """Return the bodies that ran for a task id."""
        names = {
            event["call"] for event in self.by_task.get(task_id, ()) if event["event"] == "began"
        }
        return [body for name in names for body in self.calls[name].bodies if body.id == task_id]


def build_history(
    events: Iterable[Event],
    states: Mapping[str, Mapping[str, Any]],
    left: list[Left],
    waiting: set[str],
) -> TaskHistory:
    """Put the events of one run together with what was left after it."""
    events = list(events)
    kills = [(event["worker"], event["t"]) for event in events if event["event"] == "killed"]
    by_task: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("id"):
            by_task[event["id"]].append(event)
    calls = _calls(events)
    for body in _bodies(events, kills, by_task):
        # A body of a call whose sending was never noted shows that a line is missing.
        calls[body.call].bodies.append(body)
    _add_steps(calls, by_task)
    by_key: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(calls.values(), key=lambda call: call.sending):
        by_key[call.key].append(call)
    followers = [
        Follower(name=event["follower"], id=event["id"], calls=tuple(event["calls"]))
        for event in events
        if event["event"] == "expecting"
    ]
    return TaskHistory(
        calls=calls,
        followers=followers,
        states=states,
        left=left,
        waiting=waiting,
        troubles=list(_troubles(events)),
        by_key=by_key,
        by_task=by_task,
        kills=kills,
        locks=_lock_history(events, calls, kills, by_task),
        events=events,
    )


def is_skip(state: Mapping[str, Any] | None) -> bool:
    """Return whether a task ended as a duplicate, by what the result backend has of it."""
    if state is None or state["status"] != "SUCCESS":
        return False
    # Without a `lock_skip_result` of its own a skipped task returns None; no body does.
    return state["result"] in (SKIPPED, None)


def task_of(owner: str) -> str:
    """Return whose an owner value is: it reads `<entropy> <µs> <role> <task id> ...`."""
    return (owner.split(" ") + [""] * 4)[3]


def _calls(events: list[Event]) -> dict[str, Call]:
    calls: dict[str, Call] = {}
    for event in events:
        if event["event"] == "sending":
            for name in event["calls"]:
                calls[name] = Call(
                    name=name,
                    kind=KINDS[event["kind"]],
                    key=event["key"],
                    form=event["form"],
                    sending=event["t"],
                    knows=tuple(event["knows"]),
                    events=[event],
                )
        elif event["event"] == "expecting step":
            calls[event["call"]] = Call(
                name=event["call"],
                kind=KINDS[event["kind"]],
                key=event["key"],
                form="step",
                sending=event["t"],
                id=event["id"],
                knows=(event["after"],),
                events=[event],
            )
        elif event["event"] == "sent":
            call = calls[event["call"]]
            call.sent, call.answer, call.id = event["t"], event["answer"], event["id"]
            call.events.append(event)
    return calls


def _bodies(
    events: list[Event], kills: list[tuple[str, float]], by_task: Mapping[str, list[Event]]
) -> Iterator[Body]:
    bodies: dict[str, Body] = {}
    for event in events:
        if event["event"] == "began":
            bodies[event["body"]] = Body(
                name=event["body"],
                call=event["call"],
                id=event["id"],
                kind=KINDS[event["kind"]],
                key=event["key"],
                retries=event["retries"],
                process=event["worker"],
                began=event["t"],
                token=event["token"],
                until=event["until"],
            )
        body = bodies.get(event.get("body", ""))
        if body is None:
            continue
        body.events.append(event)
        if event.get("until") is not None:
            body.until = max(body.until or 0.0, event["until"])
        if event["event"] == "ended":
            body.ended, body.how = event["t"], event["how"]
    for body in bodies.values():
        body.arrived = max(
            (
                event["t"]
                for event in by_task[body.id]
                if event["event"] == "arrived"
                and event["worker"] == body.process
                and event["t"] <= body.began
            ),
            default=body.began,
        )
        if body.ended is None:
            # An exception that struck in the note itself has kept it from being written.
            body.ended = next(
                (
                    event["t"]
                    for event in by_task[body.id]
                    if event["event"] == "left"
                    and event["worker"] == body.process
                    and event["t"] > body.began
                ),
                None,
            )
            body.how = "broken off"
        killed = _killed_at(kills, body.process)
        if killed is not None and killed < (body.ended or _FOREVER):
            body.killed = killed
        yield body


def _add_steps(calls: dict[str, Call], by_task: Mapping[str, list[Event]]) -> None:
    """A step is sent when the task before it has succeeded; then it is a call like any other."""
    for call in calls.values():
        if call.form != "step":
            continue
        before = calls.get(call.knows[0])
        call.knows = (before.id,) if before is not None and before.id else ()
        left = [
            event["t"]
            for known in call.knows
            for event in by_task[known]
            if event["event"] == "left" and event["state"] == "SUCCESS"
        ]
        if left:
            call.sending, call.sent, call.answer = min(left), min(left), "accepted"


def _troubles(events: list[Event]) -> Iterator[tuple[float, float]]:
    open_: dict[Any, float] = {}
    for event in events:
        kind = event["event"]
        if kind == "fault":
            for node in event["nodes"]:
                open_.setdefault(("node", node), event["t"])
        elif kind == "serving":
            for node in event["nodes"]:
                start = open_.pop(("node", node), event["t"])
                yield start, event["t"] + _AFTERMATH
        elif kind == "process fault":
            open_["slot", event["slot"]] = event["t"]
        elif kind == "process fault over":
            yield open_.pop(("slot", event["slot"]), event["t"]), event["t"] + _AFTERMATH
        elif kind == "stalled":
            longest = _HARNESS_STALLED if event["worker"].startswith("harness") else _STALLED
            if event["t"] - event["since"] > longest:
                yield event["since"], event["t"]
    for start in open_.values():
        yield start, _FOREVER


def _killed_at(kills: list[tuple[str, float]], process: str) -> float | None:
    return min((t for worker, t in kills if _is_in(process, worker)), default=None)


def _is_in(process: str, worker: str) -> bool:
    return process == worker or process.startswith(f"{worker}/")


def _lock_history(
    events: list[Event],
    calls: Mapping[str, Call],
    kills: list[tuple[str, float]],
    by_task: Mapping[str, list[Event]],
) -> History:
    """Return the bodies that ran under a lock as what the checks of the lock layer look at."""
    processes = {event["worker"] for event in events if "/" in event.get("worker", "")}
    pauses = [
        lock_layer.Pause(worker=process, start=pause.start, end=pause.end, stall=pause.stall)
        for pause in lock_layer.build_history(
            [event for event in events if event["event"] in ("stopping", "continued", "stalled")]
        ).pauses
        for process in processes
        if _is_in(process, pause.worker)
    ]
    killed = {
        process: at for process in processes if (at := _killed_at(kills, process)) is not None
    }
    holds = [
        _hold(body, by_task)
        for call in calls.values()
        for body in call.bodies
        if body.token is not None and body.until is not None
    ]
    return History(
        holds=sorted(holds, key=lambda hold: hold.granted),
        pauses=pauses,
        killed=killed,
        events=events,
    )


def _hold(body: Body, by_task: Mapping[str, list[Event]]) -> Hold:
    mine = [event for event in by_task[body.id] if event["worker"] == body.process]
    # The signal comes in a thread of its own, and a pause that is shorter than this is not noted.
    lost = [event["t"] - STALLED for event in mine if event["event"] == "lost"]
    return Hold(
        id=body.name,
        worker=body.process,
        key=body.key,
        invoked=body.arrived,
        granted=body.began,
        token=body.token or 0,
        until=body.until or 0.0,
        releasing=body.ended,
        lost=min((t for t in lost if body.began - STALLED <= t <= body.end), default=None),
        events=body.events,
    )
