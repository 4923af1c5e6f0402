"""
The status of a schedule: its leader, and the last run of each entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from celery_redlock.beat.leader_record import LEADER_FIELD, LeaderInfo, parse_leader
from celery_redlock.core import Register
from celery_redlock.tasks.border import AppLike
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.ticks.entry_state import EntryState
from celery_redlock.tasks.ticks.entry_ticks import schedule_name


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
