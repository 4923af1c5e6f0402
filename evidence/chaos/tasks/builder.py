"""Puts the lines of all processes together into the history that the checks look at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from evidence.chaos import history as lock_layer
from evidence.chaos.history import STALLED, Event, History, Hold
from evidence.chaos.tasks.history import (
    FOREVER,
    Body,
    Call,
    Follower,
    Left,
    TaskHistory,
    is_in,
    killed_at,
)
from evidence.chaos.tasks.kinds import KINDS

#: After a fault is mended, clients may still leave the node out for a while.
_AFTERMATH = 1.0
#: Seconds without running after which a process counts as faulty: the one with the proxies makes
#: every node slow, any other one is only late itself.
_HARNESS_STALLED = 0.15
_STALLED = 0.5


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
        killed = killed_at(kills, body.process)
        if killed is not None and killed < (body.ended or FOREVER):
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
        yield start, FOREVER


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
        if is_in(process, pause.worker)
    ]
    killed = {process: at for process in processes if (at := killed_at(kills, process)) is not None}
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
