"""What stands on the lock nodes when all tasks have ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from celery_redlock.protocol.naming import META_PREFIX
from tests.chaos.checks import Violation
from tests.chaos.tasks.history import Left, TaskHistory, task_of
from tests.chaos.tasks.outcomes import GONE, outcome_of

_RULE = "no key is left when its task has ended"
_RESET_RULE = "no key is left where a node broke its connections off meanwhile"
RULES = (_RULE, _RESET_RULE)

#: Faults that lose what is on its way to a node; all others deliver it late.
_RESETTING = ("refuse", "garbage", "relay")

#: Under the reserved prefix, but the places of locks.
_LOCKS = tuple(META_PREFIX + kind for kind in ("queued:", "running:"))


def check_leftovers(history: TaskHistory) -> Iterator[Violation]:
    """Only marks, counters and guards are left, and what a killed worker took with it."""
    excused = {
        call.id
        for call in history.calls.values()
        if call.accepted and outcome_of(history, call) in GONE
    }
    found: dict[tuple[str, str], list[Left]] = defaultdict(list)
    for left in history.left:
        if left.key.startswith(META_PREFIX) and not left.key.startswith(_LOCKS):
            continue
        if task_of(left.value) not in excused and not _is_old(history, left):
            found[left.key, left.value].append(left)
    for (key, value), copies in found.items():
        task_id = task_of(copies[0].value)
        calls = [call for call in history.calls.values() if call.id == task_id]
        reset = all(_was_reset(history, left) for left in copies)
        yield Violation(
            rule=_RESET_RULE if reset else _RULE,
            what=f"{key} stands on {len(copies)} nodes for {copies[0].left:.0f} s more: {value}",
            lines=[line for call in calls for line in call.lines],
        )


def _was_reset(history: TaskHistory, left: Left) -> bool:
    """Return whether its node had broken off connections since the key was set."""
    return any(
        event["event"] == "mended"
        and event["kind"] in _RESETTING
        and left.node in event["nodes"]
        and _set_at(left) < event["t"]
        for event in history.events
    )


def _is_old(history: TaskHistory, left: Left) -> bool:
    """Return whether its node came back with a snapshot that is older than the key's end."""
    return any(
        event["event"] == "mended"
        and event["kind"] == "restart stale"
        and left.node in event["nodes"]
        and _set_at(left) < event["t"]
        for event in history.events
    )


def _set_at(left: Left) -> float:
    """Return when the owner value of a key was made, by the clock of the histories."""
    parts = left.value.split(" ")
    return int(parts[1]) / 1e6 - left.clock if len(parts) > 1 and parts[1].isdecimal() else 0.0
