"""What became of each call, and whether that is an outcome."""

from __future__ import annotations

from collections.abc import Iterator

from evidence.chaos.checks import Violation
from evidence.chaos.history import Event
from evidence.chaos.tasks.history import Call, TaskHistory, is_skip

#: Outcomes of which nothing is left to be done.
DONE, SKIPPED, REPLACED, REVOKED, REFUSED = "done", "skipped", "replaced", "revoked", "refused"
#: Its process was killed after the message had been acknowledged.
KILLED = "killed"
#: It was on its way to a worker that was killed: Redis hands a message out before it is noted.
IN_FLIGHT = "in flight"
WAITING = "waiting"
LOST = "lost"
FAILED = "failed"

#: Calls whose message was lost with a killed process, through no fault of the lock.
LOST_ON_ITS_WAY = (KILLED, IN_FLIGHT)
#: These, and calls whose message the broker still has at the end.
GONE = (*LOST_ON_ITS_WAY, WAITING)

#: Between the moment at which a message is in the queue and its arrival at a worker, in seconds.
_ON_ITS_WAY = 5.0
_NOTED_WITHIN = 0.2

#: Characters of a traceback, from its end.
_SHOWN = 1500

_RULE = "every accepted call comes to an outcome"
_RETRY_RULE = "a chain of retries is never lost"
_FOLLOWER_RULE = "what follows a task runs: links, bodies of chords, next steps"
_FAILURE_RULE = "no call fails because of its lock"


def outcome_of(history: TaskHistory, call: Call) -> str:
    """Return what became of a call that was accepted."""
    if any(body.how == "done" for body in call.bodies):
        return DONE
    state = history.states.get(call.id)
    if is_skip(state):
        return SKIPPED
    # A worker may note the retry of a message last that another one has dropped as revoked.
    if history.times("revoked", call.id) or (state is not None and state["status"] == "REVOKED"):
        if history.times("revoking", call.id) or _key_was_revoked(history, call):
            return REVOKED
        return REPLACED if call.kind.policy == "replace" else LOST
    if state is not None and state["status"] == "FAILURE":
        raised = (state["result"] or {}).get("exc_type")
        return {"DuplicateTask": REFUSED, "WorkerLostError": KILLED}.get(raised, FAILED)
    if call.id in history.waiting:
        return WAITING
    return gone(history, call.id, acks_late=call.kind.acks_late) or LOST


def _key_was_revoked(history: TaskHistory, call: Call) -> bool:
    """Return whether somebody revoked whatever waited for the key, and perhaps died then."""
    return any(
        event["event"] == "revoking key" and event["key"] == call.key and event["t"] > call.sending
        for event in history.events
    )


def gone(history: TaskHistory, task_id: str, *, acks_late: bool) -> str | None:
    """Return by which kill a message may have been lost, or None if by none."""
    mine = [
        event
        for event in history.by_task.get(task_id, ())
        if event["event"] in ("received", "arrived", "began", "left")
    ]
    for event in mine:
        if event["event"] == "left" or acks_late:
            continue
        killed = history.killed_at(event["worker"])
        worker = event["worker"].partition("/")[0]
        if killed is not None and not any(
            later["event"] == "left"
            and event["t"] < later["t"] < killed
            and later["worker"].partition("/")[0] == worker
            for later in mine
        ):
            return KILLED
    # What is sent may be handed out before its sender has noted that it is sent.
    last = max(
        (event["t"] for event in history.by_task.get(task_id, ()) if _moves(event)), default=0
    )
    early, late = last - _NOTED_WITHIN, last + _ON_ITS_WAY
    if any(early <= at <= late for worker, at in history.kills if "/" not in worker):
        return IN_FLIGHT
    return None


def _moves(event: Event) -> bool:
    """Return whether a message was at a publisher or worker then, not only spoken of."""
    if event["event"] == "sent":
        return bool(event["answer"] == "accepted")
    return event["event"] in (
        "received",
        "arrived",
        "began",
        "left",
        "requeued",
        "redelivery_requeued",
    )


def check_outcomes(history: TaskHistory) -> Iterator[Violation]:
    """Nothing that was accepted is lost."""
    for call in history.calls.values():
        if not call.accepted:
            continue
        outcome = outcome_of(history, call)
        if outcome in (LOST, FAILED):
            yield _lost(history, call, outcome)


def check_followers(history: TaskHistory) -> Iterator[Violation]:
    """What is to follow calls that succeeded has run, or waits, or was killed."""
    ran = {event["id"] for event in history.events if event["event"] == "followed"}
    for follower in history.followers:
        calls = [history.calls[name] for name in follower.calls]
        if follower.id in ran or follower.id in history.waiting:
            continue
        if not all(
            call.accepted and outcome_of(history, call) in (DONE, SKIPPED) for call in calls
        ):
            continue
        ids = [follower.id, *(call.id for call in calls)]
        if any(gone(history, task_id, acks_late=False) for task_id in ids):
            continue
        yield Violation(
            rule=_FOLLOWER_RULE,
            what=f"{follower.name} did not, after {', '.join(follower.calls)}",
            lines=[line for call in calls for line in _lines(history, call)],
        )


def _lost(history: TaskHistory, call: Call, outcome: str) -> Violation:
    ended = call.bodies[-1].how if call.bodies else ""
    state = history.states.get(call.id) or {"status": None, "result": None}
    rule = _FAILURE_RULE if outcome == FAILED else _RULE
    if call.form == "step":
        rule = _FOLLOWER_RULE
    elif ended in ("retry", "lost", "lost in retry"):
        # Celery makes a failure, too, of what strikes while it sends a retry.
        rule = _RETRY_RULE
    return Violation(
        rule=rule,
        what=f"{call.name} ({call.form}) of {call.key}: {len(call.bodies)} bodies, the last one "
        f"ended as {ended or 'nothing'!r}; its state is {state['status']}: {state['result']}",
        lines=_lines(history, call),
    )


def _lines(history: TaskHistory, call: Call) -> list[Event]:
    lines = {id(line): line for line in (*call.lines, *history.by_task.get(call.id, ()))}
    found = sorted(lines.values(), key=lambda line: line["t"])
    traceback = (history.states.get(call.id) or {}).get("traceback")
    if traceback:
        found.append({"t": found[-1]["t"], "event": "failed", "traceback": traceback[-_SHOWN:]})
    return found
