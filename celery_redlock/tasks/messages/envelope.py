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
from celery_redlock.tasks.messages.due import END_OF_TIME
from celery_redlock.tasks.messages.tick import Tick

__all__ = ["HEADER", "Envelope", "Episode", "Original", "fresh_nonce"]

HEADER = "redlock"

DIGEST = re.compile("[0-9a-f]{32}")


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
        task_id: its id.
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
        after: id of a task that had ended when it was sent, as its sender could know; that task's
            lock may still stand, and is no obstacle.
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
        nonce, hop, after = header.get("nonce"), header.get("hop"), header.get("after")
        return cls(
            nonce=nonce if isinstance(nonce, str) else "",
            reservation=_reservation(header.get("lock")),
            hop=hop if isinstance(hop, int) and hop > 0 else 0,
            episode=_episode(header),
            window_until=_moment(header.get("window_until")),
            begun=header.get("begun") is True,
            tick=Tick.read(header.get("tick")),
            duplicate_of=_original(header.get("duplicate_of")),
            after=after if isinstance(after, str) and after else None,
        )

    def write(self) -> dict[str, Any]:
        """Return the header's value."""
        header: dict[str, Any] = {"nonce": self.nonce}
        if self.hop:
            header["hop"] = self.hop
        if self.reservation is not None:
            lock = self.reservation
            header["lock"] = {
                "keys": list(lock.keys),
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
    try:
        keys = tuple(lock["keys"])
        if not keys or not all(isinstance(key, str) and key for key in keys):
            return None
        if not isinstance(lock["owner"], str) or not lock["owner"]:
            return None
        expires_at = _moment(lock["expires_at"])
        if expires_at is None:
            return None
        return Reservation(keys=keys, owner=lock["owner"], expires_at=expires_at)
    except (KeyError, TypeError):
        return None


def _original(value: Any) -> Original | None:
    if not isinstance(value, Mapping):
        return None
    task_id, mark = value.get("id"), value.get("mark")
    if not isinstance(task_id, str) or not isinstance(mark, str) or not DIGEST.fullmatch(mark):
        return None
    return Original(task_id=task_id, mark=mark)


def _moment(value: Any) -> float | None:
    # JSON has numbers that are no time: 1e999 is read as infinity.
    return float(value) if isinstance(value, int | float) and 0 <= value <= END_OF_TIME else None


def _episode(header: Mapping[str, Any]) -> Episode | None:
    try:
        return Episode(
            first_seen=float(header["first_seen"]),
            hops=int(header["hops"]),
            retries=int(header["retries"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
