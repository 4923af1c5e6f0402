"""What runs last, and how often one message runs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

from evidence.chaos.checks import Violation
from evidence.chaos.schedule import TTL
from evidence.chaos.tasks.history import Body, Call, TaskHistory

_NEWEST_RULE = "the newest arguments run last"
#: Seconds between a lock that was taken and the first line of its body.
_A_MOMENT = 0.1

#: Seconds between the end of a body and that of its lock.
_RELEASED_WITHIN = 0.5

_ONCE_RULE = "one message, one body"


def check_newest(history: TaskHistory) -> Iterator[Violation]:
    """Under `replace` nobody runs after a call that was sent later."""
    for key in {call.key for call in history.calls.values() if call.kind.policy == "replace"}:
        calls = [call for call in history.by_key[key] if call.form != "step" and call.bodies]
        for at, older in enumerate(calls):
            newer = next((each for each in calls[at + 1 :] if _ran_late(older, each)), None)
            if newer is None:
                continue
            began = older.bodies[0].began
            if not history.calm(older.sending, began):
                continue
            if _is_sent_beside_a_body(history, older):
                continue
            if any(history.times("unlocked", each.id) for each in (older, newer)):
                continue
            yield Violation(
                rule=_NEWEST_RULE,
                what=f"{older.name} of {key} ran {began - newer.bodies[0].began:.3f} s after "
                f"{newer.name}, which was sent later",
                lines=[*older.lines, *newer.lines],
            )


def _ran_late(older: Call, newer: Call) -> bool:
    """Return whether a call ran after one that was sent later."""
    if older.sent is None or older.sent >= newer.sending:
        return False
    late, early = older.bodies[0], newer.bodies[0]
    # Between giving its lock up and its body a process may not get to run for a moment.
    return late.arrived > early.began or late.began - early.began > _A_MOMENT


def _is_sent_beside_a_body(history: TaskHistory, call: Call) -> bool:
    """Return whether a call was sent while a body had the key: it goes without the lock then."""
    return call.kind.mode == "until_executed" and any(
        body.key == call.key
        and body.arrived <= (call.sent or call.sending)
        and call.sending <= (body.ended or body.began) + _RELEASED_WITHIN
        for body in history.bodies
    )


def check_once(history: TaskHistory) -> Iterator[Violation]:
    """A message of a unique task runs one body, unless that was broken off."""
    runs: dict[tuple[str, int], list[Body]] = defaultdict(list)
    for body in history.bodies:
        if body.kind.at_publish:
            runs[body.id, body.retries].append(body)
    for (task_id, retries), bodies in runs.items():
        for first, second in itertools.pairwise(bodies):
            if first.how not in ("done", "retry") or first.killed is not None:
                continue
            if history.locks.paused(first.process, first.end - TTL, second.began):
                continue
            if not history.calm(first.began, second.began):
                continue
            yield Violation(
                rule=_ONCE_RULE,
                what=f"{task_id} of {first.key}, retry {retries}, ran {len(bodies)} bodies",
                lines=history.by_task[task_id],
            )
