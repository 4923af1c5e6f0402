"""
What today's nodes do with those that wait, told by the shipped model of a node.

`python -m evidence.waiting.today` prints each finding with the numbers that it rests on.
"""

from __future__ import annotations

import itertools

from celery_redlock.protocol.commands import Waiter, acquire, enqueue, release
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.node_model import Identity, ModelNode
from celery_redlock.protocol.votes import Granted

LONG = 10**9
#: µs: a body, the way of a wake-up and a try, and the look of a worker after a wake-up.
BODY_US, WAY_US, LOOK_US = 20_000, 2_000, 600_000
A, B = Key("a", "a"), Key("b", "b")


class Node:
    """One node with a clock, for messages that are named by their order."""

    def __init__(self, *, fair: bool) -> None:
        self._node = ModelNode(Identity("one", "one"))
        self._grace = 500 if fair else 0
        self.now = 10**12

    def _waiter(self, name: str, since: int) -> Waiter:
        return Waiter(name, since, LONG, self._grace, has_waited=True)

    def acquire(self, name: str, since: int, *keys: Key) -> bool:
        """Try to acquire keys by name; return whether they are granted."""
        waiter = self._waiter(name, since)
        command = acquire(keys, name, LONG, 0, 0, "", waiter)
        return isinstance(self._node.run(command, self.now), Granted)

    def enter(self, name: str, since: int, *keys: Key) -> None:
        """Enter a waiter again, as a worker does that has received its message."""
        waiter = self._waiter(name, since)
        self._node.run(enqueue([(key.stored, waiter) for key in keys]), self.now)

    def release(self, name: str, *keys: Key) -> list[str]:
        """Release keys; return whom that wakes."""
        self._node.published.clear()
        held = [key.at(self._slot(key, name)) if key.slots else key for key in keys]
        self._node.run(release(tuple(held), name, 7), self.now)
        return [waiter for _, waiter in self._node.published]

    def _slot(self, key: Key, name: str) -> int:
        for slot in range(key.slots):
            if self._node.owner(f"{key.stored}{slot}", self.now) == name:
                return slot
        return 0

    def waits_for(self, name: str) -> list[str]:
        """Return the keys in whose wait queues a waiter is."""
        return [key for key, queue in self._node.waiting.items() if name in queue.scores]


def woken_in_vain() -> list[str]:
    """Two keys are held by two; both wait for both: whom does a release of one key wake?"""
    node = Node(fair=True)
    node.acquire("h1", 1, A)
    node.acquire("h2", 2, B)
    node.acquire("both", 3, A, B)
    node.enter("both", 3, A, B)
    node.acquire("other", 4, A, B)
    node.enter("other", 4, A, B)
    return node.release("h1", A)


def woken_apart() -> tuple[list[str], list[str]]:
    """A message releases a and b: whom does that wake, and who could run together?"""
    node = Node(fair=True)
    node.acquire("h", 1, A, B)
    for since, (name, keys) in enumerate(
        (("m0", (A, B)), ("m1", (A, B)), ("m2", (A,)), ("m3", (B,))), 2
    ):
        node.acquire(name, since, *keys)
        node.enter(name, since, *keys)  # where its message arrives
    return node.release("h", A, B), ["m0"]


def starves(*, fair: bool, rounds: int = 200) -> int:
    """
    Return how often one that needs a and b was granted them.

    Beside it are streams of messages that need one of them; a release of each comes in turn.
    """
    node, number = Node(fair=fair), itertools.count(10)
    holders = {"a": "a0", "b": "b0"}
    node.acquire("a0", 1, A)
    node.acquire("b0", 2, B)
    node.acquire("both", 3, A, B)
    next_of = {"a": ("a1", 4), "b": ("b1", 5)}
    node.acquire("a1", 4, A)
    node.acquire("b1", 5, B)
    granted = 0
    for turn in range(rounds):
        key = (A, B)[turn % 2]
        node.now += BODY_US
        node.release(holders[key.stored], key)
        node.now += WAY_US
        # The oldest comes first whenever it is woken, and the next one after it.
        if node.acquire("both", 3, A, B):
            granted += 1
            break
        name, since = next_of[key.stored]
        node.now += WAY_US
        if node.acquire(name, since, key):
            holders[key.stored] = name
        else:
            break
        since = next(number)
        next_of[key.stored] = (f"{key.stored}{since}", since)
        node.acquire(*next_of[key.stored], key)
    return granted


def killed(*, fair: bool, gone: int = 100, alive: int = 20) -> tuple[float, float]:
    """
    Return the longest pause of a key and all pauses, in seconds: `gone` waiters died together.

    They are older than those that are alive, which are kept by one worker with one process. Whoever
    is woken tries after 2 ms; the worker looks 0.6 s after a wake-up, enters its first 16 again,
    and starts its first.
    """
    node = Node(fair=fair)
    node.acquire("h", 1, A)
    for since in range(gone):
        node.enter(f"gone{since}", 2 + since, A)
    waiting = {f"m{at}": 1000 + at for at in range(alive)}
    for name, since in waiting.items():
        node.enter(name, since, A)
    holder, pauses = "h", []
    while waiting:
        node.now += BODY_US
        woken = [name for name in node.release(holder, A) if name in waiting]
        free_since, looks_at = node.now, node.now + LOOK_US
        while True:
            if woken:
                node.now += WAY_US
                name = woken.pop(0)
            else:
                node.now = max(node.now, looks_at)
                looks_at = node.now + LOOK_US
                first = sorted(waiting, key=waiting.__getitem__)[:16]
                for one in first:
                    node.enter(one, waiting[one], A)
                node.now += WAY_US
                name = first[0]
            if node.acquire(name, waiting[name], A):
                break
        pauses.append((node.now - free_since) / 1_000_000)
        holder = name
        del waiting[name]
        for late in woken:  # the others that were woken come in vain, and wait again
            node.acquire(late, waiting[late], A)
            node.enter(late, waiting[late], A)
    return max(pauses), sum(pauses)


def main() -> None:
    """Print the findings."""
    print("a is released while b is held; woken, though both need both:", woken_in_vain())
    woken, could = woken_apart()
    print(f"a and b are released together; woken: {woken}, that could run together: {could}")
    for fair in (False, True):
        order = "in order" if fair else "without order"
        print(
            f"one that needs two keys, beside streams of one each, {order}: "
            f"granted {starves(fair=fair)} times in 200 releases"
        )
        longest, total = killed(fair=fair, alive=100)
        print(
            f"100 of a killed worker before 100 others, {order}: longest pause {longest:.2f} s, "
            f"in all {total:.2f} s"
        )


if __name__ == "__main__":
    main()
