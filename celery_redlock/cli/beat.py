"""
`celery-redlock beat`: the leader of a schedule, and the last run of each entry.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from celery_redlock.beat.leader_record import LeaderInfo
from celery_redlock.beat.status import ScheduleStatus, schedule_status
from celery_redlock.cli.apps import load_app

__all__ = ["beat"]

HEADINGS = ("ENTRY", "LAST DUE (UTC)", "LAST RUN (UTC)", "RUNS", "BY TOKEN")
NUMBERS = ("RUNS", "BY TOKEN")
NEVER = "-"


def beat(app_name: str, *, as_json: bool) -> int:
    """
    Print the status of an app's schedule, and return 0 if a beat leads it, 1 if none does.

    Args:
        app_name: the app, as for `celery -A`.
        as_json: print one JSON object instead of text.

    Raises:
        ConfigurationError: there is no such app, or its settings cannot be used.
        QuorumUnavailable: too few lock nodes answered.
    """
    status = schedule_status(load_app(app_name))
    if as_json:
        print(json.dumps(_as_data(status), indent=2))
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
    return f"{leader.host}, pid {leader.pid}, since {_time_text(leader.since_at)} UTC{token}"


def _print_entries(status: ScheduleStatus) -> None:
    if not status.entries:
        print("entries   none is recorded; a leader records them when it starts")
        return
    rows = [
        (
            entry.name if entry.name.isprintable() else repr(entry.name),
            _time_text(entry.last_due),
            _time_text(entry.last_run),
            str(entry.runs),
            str(entry.token),
        )
        for entry in status.entries
    ]
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        _print_table(rows)
    else:
        _print_lines(rows)


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in NUMBERS else "left")
    for row in rows:
        table.add_row(*map(Text, row))  # a name may look like markup
    Console().print(table)


def _print_lines(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    for row in (HEADINGS, *rows):
        cells = [
            cell.rjust(width) if heading in NUMBERS else cell.ljust(width)
            for heading, cell, width in zip(HEADINGS, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


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
                "entry": entry.name,
                "last_due": _iso(entry.last_due),
                "last_run": _iso(entry.last_run),
                "runs": entry.runs,
                "token": entry.token,
            }
            for entry in status.entries
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
