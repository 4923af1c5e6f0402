"""
What travels with a message in our one header: its identity, its lock and its waiting.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from celery_redlock.core import Reservation
from celery_redlock.tasks.messages.fields import count_in, moment_in, text_in
from celery_redlock.tasks.messages.owners import LONGEST_ID, Role, read_owner
from celery_redlock.tasks.messages.tick import Tick

__all__ = ["HEADER", "Envelope", "Episode", "Original", "fresh_nonce"]

HEADER = "redlock"

DIGEST = re.compile("[0-9a-f]{32}")

#: In characters; ours has 16.
LONGEST_NONCE = 64
#: Of a message's lock. They are all sent to each node, so there is a limit to their length, too.
MAX_KEYS = 1000
LONGEST_KEYS = 1_000_000
#: Of an owner value, in characters. It may be written to the nodes as it came.
LONGEST_OWNER = 4000


def fresh_nonce() -> str:
    """Return a value that no other publish has; the copies of one message share it."""
    return os.urandom(8).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """
    The time that one message has spent on its way to a lock.

    Attributes:
        first_seen: when a worker first failed to take the lock, in seconds since the epoch.
        hops: how often the message has been put back since.
        retries: the task's own retry count meanwhile; a retry begins a new episode.
    """

    first_seen: float
    hops: int
    retries: int

    def waited(self, now: float) -> float:
        """Return the seconds since the first attempt; clocks of different hosts may disagree."""
        return max(0.0, now - self.first_seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """
    The call that a message repeats, which held the lock when the message was sent.

    Attributes:
        task_id: its id, as an owner value names it.
        mark: digest of its message's mark.
    """

    task_id: str
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """
    The content of the header `redlock`.

    Attributes:
        nonce: tells two publishes of one task id apart; "" where the publisher did not know us.
        reservation: the lock that was taken when the task was sent, if any.
        hop: how often the lock was handed on: by a retry or a replacement.
        episode: how long the message has been waiting for a lock, if it has.
        window_until: until when the key is to stay taken (`until_expired`), in seconds since the
            epoch; a retry does not begin another window.
        begun: a body may have run for this very message, whose worker was lost then.
        tick: what a schedule sent it for, if one did.
        duplicate_of: the call that it repeats, if it does and had to be sent all the same.
        after: a task that had ended when it was sent, as its sender could know, by its id as an
            owner value names it; that task's lock may still stand, and is no obstacle.
    """

    nonce: str = ""
    reservation: Reservation | None = None
    hop: int = 0
    episode: Episode | None = None
    window_until: float | None = None
    begun: bool = False
    tick: Tick | None = None
    duplicate_of: Original | None = None
    after: str | None = None

    @classmethod
    def read(cls, headers: Mapping[str, Any] | None) -> Self:
        """Read a message's headers; what does not make sense there is as good as absent."""
        header = (headers or {}).get(HEADER)
        if not isinstance(header, Mapping):
            return cls()
        return cls(
            nonce=text_in(header.get("nonce"), LONGEST_NONCE) or "",
            reservation=_reservation(header.get("lock")),
            hop=count_in(header.get("hop")) or 0,
            episode=_episode(header),
            window_until=moment_in(header.get("window_until")),
            begun=header.get("begun") is True,
            tick=Tick.read(header.get("tick")),
            duplicate_of=_original(header.get("duplicate_of")),
            after=text_in(header.get("after"), LONGEST_ID),
        )

    def write(self) -> dict[str, Any]:
        """Return the header's value."""
        header: dict[str, Any] = {"nonce": self.nonce}
        if self.hop:
            header["hop"] = self.hop
        if self.reservation is not None:
            lock = self.reservation
            header["lock"] = {
                "keys": list(lock.node_keys),
                "owner": lock.owner,
                "expires_at": lock.expires_at,
            }
        if self.window_until is not None:
            header["window_until"] = self.window_until
        if self.begun:
            header["begun"] = True
        if self.tick is not None:
            header["tick"] = self.tick.write()
        if self.duplicate_of is not None:
            header["duplicate_of"] = {
                "id": self.duplicate_of.task_id,
                "mark": self.duplicate_of.mark,
            }
        if self.after is not None:
            header["after"] = self.after
        if self.episode is not None:
            header["first_seen"] = self.episode.first_seen
            header["hops"] = self.episode.hops
            header["retries"] = self.episode.retries
        return header

    def waiting(self, episode: Episode, *, begun: bool) -> Self:
        """Return the envelope of the same message after it was put back."""
        return replace(self, episode=episode, begun=begun)


def _reservation(lock: Any) -> Reservation | None:
    if not isinstance(lock, Mapping) or not isinstance(lock.get("keys"), list | tuple):
        return None
    keys = tuple(lock["keys"])
    if not 0 < len(keys) <= MAX_KEYS:
        return None
    if (
        any(text_in(key, LONGEST_KEYS) is None for key in keys)
        or sum(map(len, keys)) > LONGEST_KEYS
    ):
        return None
    value, expires_at = text_in(lock.get("owner"), LONGEST_OWNER), moment_in(lock.get("expires_at"))
    owner = read_owner(value)
    # Whoever has read another task's owner value must not take its lock over with it.
    if value is None or owner is None or owner.role is not Role.QUEUED or expires_at is None:
        return None
    return Reservation(node_keys=keys, owner=value, expires_at=expires_at)


def _original(value: Any) -> Original | None:
    if not isinstance(value, Mapping):
        return None
    task_id, mark = text_in(value.get("id"), LONGEST_ID), text_in(value.get("mark"), LONGEST_ID)
    if task_id is None or mark is None or not DIGEST.fullmatch(mark):
        return None
    return Original(task_id=task_id, mark=mark)


def _episode(header: Mapping[str, Any]) -> Episode | None:
    first_seen = moment_in(header.get("first_seen"))
    hops, retries = count_in(header.get("hops")), count_in(header.get("retries"))
    if first_seen is None or hops is None or retries is None:
        return None
    return Episode(first_seen=first_seen, hops=hops, retries=retries)
