"""
The leader of a schedule, as recorded on the lock nodes: in the owner value and the register.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import unquote

from celery_redlock.core.client_label import HOST, host_word
from celery_redlock.protocol.keys import META_PREFIX, owner_timestamp_us

#: The leader's field in the register, beside those of the entries; no entry can have this name.
LEADER_FIELD = META_PREFIX + "leader"

BEAT = "beat"
MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderInfo:
    """
    A beat that leads, or led.

    Attributes:
        host: its host's name.
        pid: its process id on that host.
        since: when it acquired its lease, in seconds since the epoch by its own clock.
        token: its fencing token; None if unknown.
    """

    host: str
    pid: int
    since: float
    token: int | None = None

    def __str__(self) -> str:
        return f"the beat on {self.host} (pid {self.pid})"

    @property
    def since_at(self) -> datetime:
        """When it acquired its lease, in UTC."""
        return datetime.fromtimestamp(self.since, UTC)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read what `write` wrote; None if it cannot be read."""
        try:
            found: dict[str, Any] = json.loads(text)
            leader = cls(
                host=str(found["host"]),
                pid=int(found["pid"]),
                since=float(found["since"]),
                token=int(found["token"]),
            )
            leader.since_at  # noqa: B018 - raises if it is not a valid time
        except (KeyError, TypeError, ValueError, OverflowError, OSError, RecursionError):
            return None
        return leader

    def write(self) -> str:
        """Return the text for the register."""
        content = {"host": self.host, "pid": self.pid, "since": self.since, "token": self.token}
        return json.dumps(content, separators=(",", ":"))


def beat_label() -> str:
    """Return a label for owner values, unique to one scheduler."""
    return f"{BEAT} {host_word(HOST)} {os.getpid()} {os.urandom(4).hex()}"


def parse_leader(owner: str | None) -> LeaderInfo | None:
    """Return the beat that an owner value names, or None if the holder is no beat."""
    since = owner_timestamp_us(owner or "")
    if since is None:
        return None
    try:
        kind, host, pid, _ = (owner or "").split(" ")[2:]
        leader = LeaderInfo(host=unquote(host), pid=int(pid), since=since / MILLION)
        leader.since_at  # noqa: B018 - raises if it is not a valid time
    except (ValueError, OverflowError, OSError):
        return None
    return leader if kind == BEAT else None


def own_leader_info(owner: str, token: int) -> LeaderInfo:
    """Return this process as the leader that acquired a lease."""
    since = owner_timestamp_us(owner) or 0
    return LeaderInfo(host=HOST, pid=os.getpid(), since=since / MILLION, token=token)
