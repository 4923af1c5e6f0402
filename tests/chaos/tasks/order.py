"""What runs last, and how often one message runs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.checks import Violation
from tests.chaos.schedule import TTL
from tests.chaos.tasks.history import Body, TaskHistory

_NEWEST_RULE = "the newest arguments run last"
_ONCE_RULE = "one message, one body"


def check_newest(history: TaskHistory) -> Iterator[Violation]:
    """Under `replace` nobody runs after a call that was sent later."""
    for key in {call.key for call in history.calls.values() if call.kind.policy == "replace"}:
        calls = [call for call in history.on_key(key) if call.form != "step" and call.bodies]
        for at, older in enumerate(calls):
            began = older.bodies[0].began
            newer = next(
                (
                    each
                    for each in calls[at + 1 :]
                    if older.sent is not None
                    and older.sent < each.sending
                    and each.bodies[0].began < began
                ),
                None,
            )
            if newer is None or not history.calm(older.sending, began):
                continue
            if any(history.times("unlocked", each.id) for each in (older, newer)):
                continue
            yield Violation(
                rule=_NEWEST_RULE,
                what=f"{older.name} of {key} ran {began - newer.bodies[0].began:.3f} s after "
                f"{newer.name}, which was sent later",
                lines=[*older.lines, *newer.lines],
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
                lines=[*first.events, *second.events],
            )
