"""
The status of a schedule: its leader, and the last run of each entry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from celery_redlock.beat.leader_record import LEADER_FIELD, LeaderInfo, parse_leader
from celery_redlock.core import Register, VersionedValue
from celery_redlock.schedules.timeutils import SECOND, from_us
from celery_redlock.tasks.border import AppLike
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.ticks.entry_state import EntryState
from celery_redlock.tasks.ticks.entry_ticks import schedule_name


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryStatus:
    """
    The last run of an entry.

    Attributes:
        name: the entry's name.
        runs: how often it was sent.
        last_due: the due time that it was sent for last; None if it never was.
        last_run: when it was sent last; None if it never was.
        token: the fencing token of the leader that recorded this.
    """

    name: str
    runs: int
    last_due: datetime | None
    last_run: datetime | None
    token: int


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
        entries: the recorded entries, sorted by name.
    """

    schedule: str
    leader: LeaderInfo | None
    lease_remaining: float | None
    foreign_owner: str | None
    last_leader: LeaderInfo | None
    entries: tuple[EntryStatus, ...]


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
        entries=tuple(
            standing
            for entry in sorted(recorded)
            if (standing := _entry(entry, recorded[entry])) is not None
        ),
    )


def _entry(name: str, recorded: VersionedValue) -> EntryStatus | None:
    state = EntryState.read(recorded)
    if state is None:
        return None
    ran = state.count > 0
    return EntryStatus(
        name=name,
        runs=state.count,
        last_due=from_us(state.due_us) if ran else None,
        last_run=from_us(round(state.ran_at * SECOND)) if ran else None,
        token=recorded.token,
    )
