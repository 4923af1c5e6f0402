"""What stands on the lock nodes when all tasks have ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from celery_redlock.protocol.keys import META_PREFIX
from evidence.chaos.checks import Violation
from evidence.chaos.schedule import NODES
from evidence.chaos.tasks.history import Left, TaskHistory, task_of
from evidence.chaos.tasks.outcomes import GONE, LOST_ON_ITS_WAY, outcome_of

_RULE = "no key is taken when its task has ended"
RULES = (_RULE,)

#: Fewer nodes than this keep nobody away. A release that a node does not get is kept for it by the
#: process that released, and is lost with that process; the nemesis kills many.
_QUORUM = NODES // 2 + 1

#: Under the reserved prefix, but the places of locks.
_LOCKS = tuple(META_PREFIX + kind for kind in ("queued:", "running:"))


def check_leftovers(history: TaskHistory) -> Iterator[Violation]:
    """No key keeps anybody away but what a killed worker took with it."""
    excused = {
        call.id
        for call in history.calls.values()
        if call.accepted and outcome_of(history, call) in GONE
    }
    found: dict[str, list[Left]] = defaultdict(list)
    for left in history.left:
        if left.key.startswith(META_PREFIX) and not left.key.startswith(_LOCKS):
            continue
        if task_of(left.value) not in excused and not _is_old(history, left):
            found[left.key].append(left)
    for key, copies in found.items():
        if len({left.node for left in copies}) < _QUORUM:
            continue
        tasks = {task_of(left.value) for left in copies}
        calls = [call for call in history.calls.values() if call.id in tasks]
        yield Violation(
            rule=_RULE,
            what=f"{key} stands on {len(copies)} nodes for {copies[0].left:.0f} s more: "
            f"{', '.join(sorted({left.value for left in copies}))}",
            lines=[line for call in calls for line in call.lines],
        )


def lost_holders(history: TaskHistory) -> set[str]:
    """Return the ids of messages that are gone and whose keys stand until they expire."""
    holders = {task_of(left.value) for left in history.left}
    return {
        call.id
        for call in history.calls.values()
        if call.id in holders and call.accepted and outcome_of(history, call) in LOST_ON_ITS_WAY
    }


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
