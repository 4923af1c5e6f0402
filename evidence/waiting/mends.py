"""
What single changes of today's waiting do, with the shipped model of a node changed in memory.

`python -m evidence.waiting.mends` prints, for each change, the pauses after a killed worker, whom a
release wakes in vain, and whether the shipped models of waiters still hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from celery_redlock.protocol.commands import Command, Waiter
from celery_redlock.protocol.node_model import COMES_WITHIN_US, LOOKED_AT, ModelNode, _Limit
from celery_redlock.protocol.votes import Vote
from evidence.models.explorer import Outcome, explore
from evidence.models.waiters import WAITERS, Waiters
from evidence.waiting import today

#: At most so many are on their way at once because those before them did not come.
MOST_MORE = 32

_shipped_acquire = ModelNode._acquire


def _wake_doubling(self: ModelNode, key: str, slots: int, now_us: int) -> None:
    """As shipped, but for each that did not come two more are woken."""
    if key not in self.waiting or self._paused_for(key, now_us) is not None:
        return
    queue = self._wait_queue(key, now_us)
    places = _Limit(slots).slots_of(key) if slots else ()
    free = sum(self.owner(place, now_us) is None for place in places) if slots else 1
    wanted, more = free + 1, 0
    for name in queue.first(wanted + LOOKED_AT + 1):
        if not wanted:
            return
        at = queue.woken.get(name)
        if at is not None and now_us - at > COMES_WITHIN_US:
            queue.forget(name)
            self.published.append((key, name))
            if more < MOST_MORE:
                wanted, more = wanted + 2, more + 2
            continue
        if at is None:
            self._wake_one(key, name, now_us)
        wanted -= 1


def _release_together(self: ModelNode, command: Command, fences: Any, now_us: int) -> Vote:
    """As shipped, but all keys are deleted before anybody is woken, and nobody is woken twice."""
    later: list[tuple[str, int]] = []
    with patch.object(ModelNode, "_wake", lambda _, key, slots, now_us: later.append((key, slots))):
        vote = _shipped_release(self, command, fences, now_us)
    begin = len(self.published)
    for key, slots in later:
        self._wake(key, slots, now_us)
    new = list({name: (key, name) for key, name in self.published[begin:]}.values())
    self.published[begin:] = new
    return vote


_shipped_release = ModelNode._release


def _acquire_absent(self: ModelNode, command: Command, now_us: int) -> Vote:
    """As shipped, but nodes forget whom they refuse: it is entered again where it arrives."""
    args = command.args
    if len(args) > 7 and args[5] != "" and args[7]:
        args = (*args[:7], 0, *args[8:])
    return _shipped_acquire(self, replace(command, args=args), now_us)


#: What a node would keep beside the wait queues: all keys of each waiter.
_needs: dict[str, tuple[str, ...]] = {}


def _acquire_noting_keys(self: ModelNode, command: Command, now_us: int) -> Vote:
    """As shipped, but the node keeps all keys that a waiter needs."""
    name = str(command.args[5]) if len(command.args) > 5 else ""
    _needs[name] = command.keys[: (len(command.keys) - 1) // 2]
    return _shipped_acquire(self, command, now_us)


def _wake_able(self: ModelNode, key: str, slots: int, now_us: int) -> None:
    """As shipped, but one that lacks another ordinary key waits for that one instead."""
    queue = self.waiting.get(key)
    for name in queue.first(LOOKED_AT) if queue is not None else ():
        for other in _needs.get(name, ()):
            if other != key and self.owner(other, now_us) is not None:
                assert queue is not None
                since = queue.scores[name]
                queue.forget(name)
                self._queue(other, now_us, Waiter(name, since, today.LONG))
                break
    _shipped_wake(self, key, slots, now_us)


_shipped_wake = ModelNode._wake

MENDS: dict[str, dict[str, Callable[..., Any]]] = {
    "as shipped": {},
    "two more for each that did not come": {"_wake": _wake_doubling},
    "all keys together": {"_release": _release_together},
    "nobody who cannot run": {
        "_acquire": _acquire_noting_keys,
        "_wake": _wake_able,
        "_release": _release_together,
    },
    "a refusal ends the place": {"_acquire": _acquire_absent},
}


@contextlib.contextmanager
def mended(name: str) -> Iterator[None]:
    """Change the node."""
    with contextlib.ExitStack() as stack:
        for method, then in MENDS[name].items():
            stack.enter_context(patch.object(ModelNode, method, then))
        yield


def main() -> None:
    """Print what each change does."""
    for name in MENDS:
        with mended(name):
            print(f"{name}:")
            for fair in (False, True):
                longest, total = today.killed(fair=fair, alive=100)
                print(
                    f"  killed, {'in order' if fair else 'without order'}: longest pause "
                    f"{longest:.2f} s, in all {total:.2f} s"
                )
            print(f"  woken by the release of a and b: {today.woken_apart()[0]}")
            print(f"  woken by that of a alone, though both need b: {today.woken_in_vain()}")
            for setting in WAITERS:
                if setting.whole:
                    _tell(explore(Waiters(setting), setting.name, 30_000))


def _tell(outcome: Outcome) -> None:
    how_far = "all" if outcome.exhausted else "the nearest"
    print(
        f"  {outcome.name:20} {how_far} {outcome.states:,} states: {outcome.violation or 'holds'}"
    )
    for number, step in enumerate(outcome.trace, 1):
        print(f"    {number:2}. {step}")


if __name__ == "__main__":
    main()
