"""Duplicates: which calls may be answered or skipped for another, and which have to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from evidence.chaos.checks import Violation
from evidence.chaos.schedule import TTL
from evidence.chaos.tasks.history import Body, Call, TaskHistory, is_skip, task_of
from evidence.chaos.tasks.kinds import PUBLISH_GRACE, TAKEN_AWAY, WINDOW
from evidence.chaos.tasks.outcomes import GONE, outcome_of

_READ_RULE = "who has read a result, or follows it, sends a new call"
_LIVE_RULE = "a duplicate is answered for a task that waits or runs"
_FREED_RULE = "who revokes what waits and frees its key sends a new call"
_SKIP_RULE = "a task is skipped for another that ran meanwhile, or will"
_TWICE_RULE = "sent twice, run once"

#: Between the end of a body and the end of its lock: results are stored, nodes are asked.
_RELEASED_WITHIN = TTL
#: The longest countdown that publishers ask for, in seconds.
_LONGEST_COUNTDOWN = 1.5


@dataclass(slots=True, kw_only=True)
class Pairs:
    """
    How often "sent twice, run once" was judged.

    Attributes:
        judged: pairs of calls of which the second was sent while the first waited, in calm.
        twice: of these, those whose second ran a body of its own, by form.
        revoked: duplicates that were answered or skipped for a task that was revoked; not judged.
    """

    judged: int = 0
    twice: dict[str, int] = field(default_factory=dict)
    revoked: int = 0


def check_answers(history: TaskHistory, pairs: Pairs) -> Iterator[Violation]:
    """Nobody is told that its call is a duplicate of one that has ended."""
    by_id = {call.id: call for call in history.calls.values() if call.accepted}
    for call in history.calls.values():
        if call.answer not in ("duplicate", "refused") or TAKEN_AWAY in call.key:
            continue
        other = by_id.get(call.id)
        if other is not None and not call.kind.windowed and _knew(history, call, other):
            yield Violation(
                rule=_READ_RULE,
                what=f"{call.name} ({call.form}) of {call.key} was answered for {other.name}, "
                "which its publisher knew to have ended",
                lines=[*other.lines, *call.lines],
            )
        elif _freed_before(history, call):
            yield Violation(
                rule=_FREED_RULE,
                what=f"{call.name} of {call.key} was answered for {call.id}, whose key was free",
                lines=[*history.by_task.get(call.id, ()), *call.lines],
            )
        elif _dropped_before(history, call):
            yield Violation(
                rule=_LIVE_RULE,
                what=f"{call.name} ({call.form}) of {call.key} was answered for {call.id}, which a "
                "worker had dropped as revoked",
                lines=[*history.by_task.get(call.id, ()), *call.lines],
            )
        elif any(at < call.sending for at in history.times("revoking", call.id)):
            pairs.revoked += 1
        elif not _is_live(history, call, other):
            yield Violation(
                rule=_LIVE_RULE,
                what=f"{call.name} ({call.form}) of {call.key} was answered for {call.id}, "
                + _age(history, call),
                lines=[*(other.lines if other else ()), *call.lines],
            )


def check_skips(history: TaskHistory, pairs: Pairs) -> Iterator[Violation]:
    """Nothing is skipped unless another body does the work, after the skipped call was sent."""
    for call in history.calls.values():
        if not call.accepted or not is_skip(history.states.get(call.id)) or call.bodies:
            continue
        others = [
            other
            for other in history.by_key[call.key]
            if other is not call and other.id != call.id and other.id not in call.knows
        ]
        if any(_does_the_work(history, call, other) for other in others):
            continue
        if any(history.times("revoking", holder) for holder in _skipped_for(history, call)):
            pairs.revoked += 1
            continue
        yield Violation(
            rule=_SKIP_RULE,
            what=f"{call.name} ({call.form}) of {call.key} was skipped, and nothing ran for it",
            lines=[*call.lines, *history.by_task.get(call.id, ())],
        )


def check_pairs(history: TaskHistory, pairs: Pairs) -> Iterator[Violation]:
    """Of two calls of one key, of which the second is sent while the first waits, one runs."""
    for key in {call.key for call in history.calls.values() if call.kind.unique}:
        if TAKEN_AWAY in key:
            continue
        calls = [call for call in history.by_key[key] if call.form != "step"]
        for at, second in enumerate(calls):
            first = next(
                (each for each in reversed(calls[:at]) if _waits_beside(each, second)), None
            )
            if first is None or not _is_judged(history, first, second):
                continue
            pairs.judged += 1
            if not second.bodies:
                continue
            pairs.twice[second.form] = pairs.twice.get(second.form, 0) + 1
            yield Violation(
                rule=_TWICE_RULE,
                what=f"{second.name} ({second.form}) of {key} was sent while {first.name} "
                f"({first.form}) waited, and both ran",
                lines=[*first.lines, *second.lines],
            )


def _skipped_for(history: TaskHistory, call: Call) -> Iterator[str]:
    """Yield the ids of the tasks that a worker has skipped a call for."""
    for event in history.by_task.get(call.id, ()):
        if event["event"] == "skipped":
            yield task_of(event["holder"])


def _knew(history: TaskHistory, call: Call, other: Call) -> bool:
    if other.id in call.knows:
        return True
    read = [
        event["t"]
        for event in history.by_task.get(other.id, ())
        if event["event"] == "read" and event["state"] == "SUCCESS"
    ]
    return any(at < call.sending for at in read)


def _freed_before(history: TaskHistory, call: Call) -> bool:
    return any(
        event["event"] == "revoking" and event["freed"] and event["t"] < call.sending
        for event in history.by_task.get(call.id, ())
    )


def _dropped_before(history: TaskHistory, call: Call) -> bool:
    """Return whether a worker had dropped a revoked task, and had time to free its key."""
    news = [
        event
        for event in history.by_task.get(call.id, ())
        if event["event"] in ("revoked", "received", "began", "ended", "left")
        and event["t"] < call.sending
    ]
    return (
        any(event["event"] == "revoked" for event in news)
        and news[-1]["t"] + _RELEASED_WITHIN < call.sending
    )


def _is_live(history: TaskHistory, call: Call, other: Call | None) -> bool:
    """Return whether the task that a duplicate was answered for had still to run, or ran."""
    bodies = history.bodies_of(call.id)
    if any(_runs_after(history, body, call.sending) for body in bodies):
        return True
    if other is None:
        # Its publisher never had an answer: it died, and its lock outlives it for the grace.
        return any(
            not each.answer and each.sending < (call.sent or 0.0)
            for each in history.by_key[call.key]
        )
    if call.kind.windowed:
        due = (other.sent or other.sending) + _LONGEST_COUNTDOWN
        return call.sending <= due + WINDOW + _RELEASED_WITHIN + PUBLISH_GRACE
    if is_skip(history.states.get(other.id)):
        # Its lock was lost to faults, and another has done the work of both.
        return any(
            _does_the_work(history, call, each)
            for each in history.by_key[call.key]
            if each is not call and each.id not in call.knows
        )
    revoked = history.times("revoking", other.id)
    return bool(revoked) or outcome_of(history, other) in GONE


def _runs_after(history: TaskHistory, body: Body, since: float) -> bool:
    """Return whether a body does the work of a call that was sent at this time."""
    moment = body.began if body.kind.waiting_only else body.end
    if body.killed is not None:
        moment = body.until or body.killed
    if moment + _RELEASED_WITHIN > since:
        return True
    # Whoever is paused lets go late.
    pause = history.locks.paused(body.process, moment, since)
    return pause is not None and pause.end + _RELEASED_WITHIN > since


def _does_the_work(history: TaskHistory, call: Call, other: Call) -> bool:
    if call.kind.windowed:
        since = call.sending - WINDOW - _LONGEST_COUNTDOWN - PUBLISH_GRACE
        return any(body.end > since for body in other.bodies)
    if any(_runs_after(history, body, call.sending) for body in other.bodies):
        return True
    return not other.bodies and other.accepted and outcome_of(history, other) in GONE


def _waits_beside(first: Call, second: Call) -> bool:
    """Return whether the first waited all the time while the second was sent."""
    return (
        first.accepted
        and first.sent is not None
        and first.sent < second.sending
        and second.sent is not None
        and bool(first.bodies)
        and first.bodies[0].arrived > second.sent
    )


def _is_judged(history: TaskHistory, first: Call, second: Call) -> bool:
    end = max((body.began for body in second.bodies[:1]), default=second.sent or second.sending)
    if not history.calm(first.sending, end):
        return False
    if any(history.times("unlocked", each.id) for each in (first, second) if each.accepted):
        return False
    # The duplicates of a task that is revoked run, all of them.
    return not any(
        at <= end
        for each in history.by_key[first.key]
        if each.id
        for at in history.times("revoking", each.id)
        if at >= first.sending - WINDOW
    )


def _age(history: TaskHistory, call: Call) -> str:
    bodies = history.bodies_of(call.id)
    ended = max((body.end for body in bodies), default=None)
    if ended is None:
        return "which ran no body"
    return f"whose last body had ended {call.sending - ended:.3f} s before"
