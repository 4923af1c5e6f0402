"""
The records of a schedule on the lock nodes: its leader, and the last run of each entry.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import unquote

from celery_redlock.core import Register
from celery_redlock.core.client_label import HOST, host_word
from celery_redlock.protocol.keys import META_PREFIX, owner_timestamp_us
from celery_redlock.tasks.border import AppLike
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.ticks.entry_state import EntryState
from celery_redlock.tasks.ticks.entry_ticks import schedule_name

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStatus:
    """
    The status of a schedule, read from a quorum of lock nodes.

    Attributes:
        schedule: its name on the nodes.
        leader: the beat that leads; None if none does.
        lease_remaining: seconds until its lease expires unless it is extended; None if it has no
            lease.
        foreign_owner: the owner value of a holder of the schedule's lock that is no beat.
        last_leader: the beat that leads, or else led last; None if no beat has led.
        entries: the recorded entries, by their names and sorted.
    """

    schedule: str
    leader: LeaderInfo | None
    lease_remaining: float | None
    foreign_owner: str | None
    last_leader: LeaderInfo | None
    entries: Mapping[str, EntryState]


def schedule_status(app: AppLike) -> ScheduleStatus:
    """
    Return the status of an app's schedule.

    Raises:
        QuorumUnavailable: too few lock nodes answered.
        ConfigurationError: the app's settings cannot be used.
    """
    client, name = client_for(app), schedule_name(app)
    (held,) = client.inspect(client.key_of(name).places)
    recorded = Register(client, name).read()
    last = recorded.pop(LEADER_FIELD, None)
    last_leader = None if last is None else LeaderInfo.read(last.text)
    leader = None if held is None else parse_leader(held.owner)
    if leader is not None and held is not None:
        # The nodes' counters show this leader's token only until they are raised again.
        known = last_leader is not None and replace(last_leader, token=None) == leader
        leader = last_leader if known else replace(leader, token=held.token)
    return ScheduleStatus(
        schedule=name,
        leader=leader,
        lease_remaining=None if held is None else held.expires_in,
        foreign_owner=held.owner if held is not None and leader is None else None,
        last_leader=last_leader,
        entries={
            name: state
            for name in sorted(recorded)
            if (state := EntryState.read(recorded[name])) is not None
        },
    )
