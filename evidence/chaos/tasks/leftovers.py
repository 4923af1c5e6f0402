"""What stands on the lock nodes when all tasks have ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator

from celery_redlock.protocol.keys import META_PREFIX
from evidence.chaos.checks import Violation
from evidence.chaos.schedule import NODES
from evidence.chaos.tasks.history import Left, TaskHistory, task_of
from evidence.chaos.tasks.outcomes import GONE, LOST_ON_ITS_WAY, outcome_of

_RULE = "no key is taken when its task has ended"

#: Fewer nodes than this keep nobody away. A release that a node does not get is kept for it by the
#: process that released, and is lost with that process; the nemesis kills many.
_QUORUM = NODES // 2 + 1

#: Under the reserved prefix, but the places of locks.
_LOCKS = tuple(META_PREFIX + kind for kind in ("queued:", "running:"))


def check_leftovers(history: TaskHistory) -> Iterator[Violation]:
    """No key keeps anybody away but what a killed worker took with it."""
    excused = _ids(history, GONE)
    taken = _taken(
        history, lambda left: task_of(left.value) not in excused and not _is_old(history, left)
    )
    for key, copies in taken.items():
        tasks = {task_of(left.value) for left in copies}
        calls = [call for call in history.calls.values() if call.id in tasks]
        yield Violation(
            rule=_RULE,
            what=f"{key} stands on {len(copies)} nodes for {copies[0].left:.0f} s more: "
            f"{', '.join(sorted({left.value for left in copies}))}",
            lines=[line for call in calls for line in call.lines],
        )


def keys_of_lost(history: TaskHistory) -> set[str]:
    """Return the lock keys that stay taken because the message that holds them was lost."""
    lost = _ids(history, LOST_ON_ITS_WAY)
    taken = _taken(history, lambda left: task_of(left.value) in lost)
    holders = {task_of(left.value) for copies in taken.values() for left in copies}
    return {call.key for call in history.calls.values() if call.id in holders}


def _ids(history: TaskHistory, outcomes: Collection[str]) -> set[str]:
    """Return the task ids of accepted calls that came to one of these outcomes."""
    return {
        call.id
        for call in history.calls.values()
        if call.accepted and outcome_of(history, call) in outcomes
    }


def _taken(history: TaskHistory, counts: Callable[[Left], bool]) -> dict[str, list[Left]]:
    """Return the places of locks that a quorum has, each with those of its copies that count."""
    found: dict[str, list[Left]] = defaultdict(list)
    for left in history.left:
        is_lock = left.key.startswith(_LOCKS) or not left.key.startswith(META_PREFIX)
        if is_lock and counts(left):
            found[left.key].append(left)
    return {
        key: copies
        for key, copies in found.items()
        if len({left.node for left in copies}) >= _QUORUM
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
