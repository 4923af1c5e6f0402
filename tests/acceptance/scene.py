"""What a test looks at: the lock on its nodes, and the journal that task bodies write."""

from __future__ import annotations

import json
from typing import Any

import redis

from tests.acceptance.worker import Worker
from tests.support.waiting import RELEASE_PATIENCE, TIMEOUT, wait_until

# A node that nobody has stopped answers in the end; who stops one does not look at it meanwhile.
LOOK_TIMEOUT = 20.0
# Longer than any command of a holder is under way, and no longer than it takes to find out.
FOREIGN_TTL_MS = 1000


class Lock:
    """One lock key as the nodes have it, read and written without the package under test."""

    def __init__(self, key: str, urls: list[str]) -> None:
        self.key = f"redlock:{key}"
        self._nodes = [redis.Redis.from_url(url, socket_timeout=LOOK_TIMEOUT) for url in urls]
        self.quorum = len(urls) // 2 + 1

    @property
    def values(self) -> list[str | None]:
        """The stored owner on each node; None where the key is absent."""
        return [self._value(node) for node in self._nodes]

    def _value(self, node: redis.Redis) -> str | None:
        value = node.get(self.key)
        return None if value is None else value.decode()

    @property
    def owner(self) -> str | None:
        """The one owner value that stands on a quorum."""
        values = self.values
        for value in set(values) - {None}:
            if values.count(value) >= self.quorum:
                return value
        return None

    @property
    def is_held(self) -> bool:
        return self.owner is not None

    @property
    def is_gone(self) -> bool:
        return not any(self.values)

    @property
    def expires_in(self) -> float:
        """Seconds until the last node's key ends; 0 when all have ended."""
        return max(0, *(node.pttl(self.key) for node in self._nodes)) / 1000

    @property
    def free_in(self) -> float:
        """Seconds until a quorum of nodes would grant it to somebody else; 0 if one does now."""
        lives = sorted(max(0, node.pttl(self.key)) for node in self._nodes)
        return lives[self.quorum - 1] / 1000

    def wait_until_gone(self) -> None:
        wait_until(
            lambda: self.is_gone,
            RELEASE_PATIENCE,
            message=lambda: f"{self.key} gone: {self.values}",
        )

    def wait_until_held(self) -> str:
        return wait_until(lambda: self.owner, message=lambda: f"{self.key} held: {self.values}")

    def wait_for_renewals(self, count: int) -> None:
        """Wait until the remaining time has risen again `count` times."""
        seen = 0
        before = self.expires_in

        def renewed() -> bool:
            nonlocal seen, before
            now = self.expires_in
            seen += now > before
            before = now
            return seen >= count

        wait_until(renewed, message=lambda: f"{count} renewals of {self.key}, saw {seen}")

    def occupy(self, ttl: float = 60.0) -> None:
        """Hold the lock as some canonical client elsewhere would."""
        for node in self._nodes:
            assert node.set(self.key, "somebody-else", nx=True, px=int(ttl * 1000))

    def take_away(self) -> None:
        """
        Let somebody else have the key on a quorum of nodes for a moment.

        Had it only been deleted, a command of the holder that is still under way, or the mending
        that follows an extension, could set it again.
        """
        for node in self._nodes[: self.quorum]:
            node.set(self.key, "somebody-else", px=FOREIGN_TTL_MS)

    def delete(self) -> None:
        """Take the key away from all nodes, whoever holds it."""
        for node in self._nodes:
            node.delete(self.key)

    def close(self) -> None:
        for node in self._nodes:
            node.close()


class Journal:
    """What the bodies that work on one key wrote down, and the gates that hold them up."""

    def __init__(self, key: str, url: str) -> None:
        self.key = key
        self._store = redis.Redis.from_url(url)

    @property
    def entries(self) -> list[dict[str, Any]]:
        return self.entries_from(0)

    def entries_from(self, place: int) -> list[dict[str, Any]]:
        """Return what was written after the first `place` entries."""
        entries = self._store.lrange(f"journal:{self.key}", place, -1)
        return [json.loads(entry) for entry in entries]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.entries if entry["event"] == event]

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """Return the `count`-th entry of this event, once it is there."""
        entries = wait_until(
            lambda: self.of(event)[count - 1 :],
            message=lambda: f"{event!r} number {count} in {self.entries}",
        )
        return entries[0]

    def open(self, gate: str = "go") -> None:
        """Let bodies through this gate, those that come later included."""
        self._store.set(f"gate:{self.key}:{gate}", 1)

    def close(self) -> None:
        self._store.close()


def assert_next_waits_it_out(worker: Worker, key: str, lock: Lock, journal: Journal) -> None:
    """The next task waits until the lock of a killed holder expires, and has a larger token."""
    first = journal.wait_for("entered")
    following = worker.send("hold_shortly", key)
    second = journal.wait_for("entered", 2)
    assert lock.owner == second["owner"] != first["owner"]
    assert second["token"] > first["token"]
    journal.open()
    assert following.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()
