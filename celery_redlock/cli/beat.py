"""
`celery-redlock beat`: the leader of a schedule, and the last run of each entry.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from celery import Celery

from celery_redlock.beat.leader_record import LeaderInfo, ScheduleStatus, schedule_status
from celery_redlock.cli.output import print_json, print_table, printable

HEADINGS = ("ENTRY", "LAST DUE (UTC)", "LAST RUN (UTC)", "RUNS", "BY TOKEN")
NUMBERS = ("RUNS", "BY TOKEN")
NEVER = "-"


def show_beat(app: Celery, *, as_json: bool) -> int:
    """
    Print the status of an app's schedule, and return 0 if a beat leads it, 1 if none does.

    Args:
        app: the app.
        as_json: print one JSON object instead of text.

    Raises:
        ConfigurationError: its settings cannot be used.
        QuorumUnavailable: too few lock nodes replied.
    """
    status = schedule_status(app)
    if as_json:
        print_json(_as_data(status))
    else:
        print(f"schedule  {status.schedule}")
        print(f"leader    {_leader_line(status)}")
        _print_entries(status)
    return 0 if status.leader is not None else 1


def _leader_line(status: ScheduleStatus) -> str:
    if status.leader is not None:
        left = (
            "" if status.lease_remaining is None else f", lease {status.lease_remaining:.1f} s left"
        )
        return f"{_leader_text(status.leader)}{left}"
    if status.foreign_owner is not None:
        return (
            f"no beat: the lock is held by {status.foreign_owner!r}. Give the schedule a name "
            "of its own with redlock_beat_key"
        )
    if status.last_leader is not None:
        return f"none now; the last was {_leader_text(status.last_leader)}"
    return "none, and none has led before: start one with celery -A ... beat -S redlock"


def _leader_text(leader: LeaderInfo) -> str:
    token = "" if leader.token is None else f", token {leader.token}"
    host, since = printable(leader.host), _time_text(leader.since_at)
    return f"{host}, pid {leader.pid}, since {since} UTC{token}"


def _print_entries(status: ScheduleStatus) -> None:
    if not status.entries:
        print("entries   none is recorded; a leader records them when it starts")
        return
    rows = [
        (
            name,
            _time_text(entry.last_due),
            _time_text(entry.last_run),
            str(entry.count),
            str(entry.token),
        )
        for name, entry in status.entries.items()
    ]
    print_table(HEADINGS, rows, numbers=NUMBERS)


def _time_text(moment: datetime | None) -> str:
    return NEVER if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def _as_data(status: ScheduleStatus) -> dict[str, Any]:
    return {
        "schedule": status.schedule,
        "leader": _leader_as_data(status.leader),
        "lease_remaining": status.lease_remaining if status.leader is not None else None,
        "foreign_owner": status.foreign_owner,
        "last_leader": _leader_as_data(status.last_leader),
        "entries": [
            {
                "entry": name,
                "last_due": _iso(entry.last_due),
                "last_run": _iso(entry.last_run),
                "runs": entry.count,
                "token": entry.token,
            }
            for name, entry in status.entries.items()
        ],
    }


def _leader_as_data(leader: LeaderInfo | None) -> dict[str, Any] | None:
    if leader is None:
        return None
    return {
        "host": leader.host,
        "pid": leader.pid,
        "since": _iso(leader.since_at),
        "token": leader.token,
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
