"""
`celery-redlock beat`: who leads a schedule, and how far its entries have come.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from celery import Celery
from celery.app.utils import find_app

from celery_redlock.beat.leader_record import LeaderInfo
from celery_redlock.beat.status import ScheduleStatus, schedule_status
from celery_redlock.errors import ConfigurationError

__all__ = ["beat"]

HEADINGS = ("ENTRY", "LAST DUE (UTC)", "LAST RUN (UTC)", "RUNS", "BY TOKEN")
NUMBERS = ("RUNS", "BY TOKEN")
NEVER = "-"


def beat(app_name: str, *, as_json: bool) -> int:
    """
    Print how an app's schedule stands, and return 0 if a beat leads it, 1 if none does.

    Args:
        app_name: as `celery -A` takes it.
        as_json: print one JSON object instead of text.

    Raises:
        ConfigurationError: there is no such app, or its settings cannot be used.
        QuorumUnavailable: too few lock nodes answered.
    """
    standing = schedule_status(_load(app_name))
    if as_json:
        print(json.dumps(_as_data(standing), indent=2))
    else:
        print(f"schedule  {standing.schedule}")
        print(f"leader    {_who_leads(standing)}")
        _print_entries(standing)
    return 0 if standing.leader is not None else 1


def _load(app_name: str) -> Any:
    try:
        found = find_app(app_name)
    except Exception as exc:
        # Whatever the app's module raises at its import.
        raise _no_app(app_name, f"{type(exc).__name__}: {exc}") from exc
    if not isinstance(found, Celery):
        raise _no_app(app_name, f"it is no Celery app but a {type(found).__name__}")
    return found


def _no_app(app_name: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"-A {app_name} cannot be loaded ({reason}). Give it as to celery: the module or package "
        "of the app, or module:attribute; run this where celery is run."
    )


def _who_leads(standing: ScheduleStatus) -> str:
    if standing.leader is not None:
        left = (
            ""
            if standing.lease_remaining is None
            else f", lease {standing.lease_remaining:.1f} s left"
        )
        return f"{_described(standing.leader)}{left}"
    if standing.foreign_owner is not None:
        return (
            f"no beat: the lock is held by {standing.foreign_owner!r}. Give the schedule a name "
            "of its own with redlock_beat_key"
        )
    if standing.last_leader is not None:
        return f"none now; the last was {_described(standing.last_leader)}"
    return "none, and none has led before: start one with celery -A ... beat -S redlock"


def _described(leader: LeaderInfo) -> str:
    token = "" if leader.token is None else f", token {leader.token}"
    return f"{leader.host}, pid {leader.pid}, since {_shown(leader.since_at)} UTC{token}"


def _print_entries(standing: ScheduleStatus) -> None:
    if not standing.entries:
        print("entries   none is recorded; a leader records them when it begins")
        return
    rows = [
        (
            entry.name if entry.name.isprintable() else repr(entry.name),
            _shown(entry.last_due),
            _shown(entry.last_run),
            str(entry.runs),
            str(entry.token),
        )
        for entry in standing.entries
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


def _shown(moment: datetime | None) -> str:
    return NEVER if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def _as_data(standing: ScheduleStatus) -> dict[str, Any]:
    return {
        "schedule": standing.schedule,
        "leader": _leader_as_data(standing.leader),
        "lease_remaining": standing.lease_remaining if standing.leader is not None else None,
        "foreign_owner": standing.foreign_owner,
        "last_leader": _leader_as_data(standing.last_leader),
        "entries": [
            {
                "entry": entry.name,
                "last_due": _iso(entry.last_due),
                "last_run": _iso(entry.last_run),
                "runs": entry.runs,
                "token": entry.token,
            }
            for entry in standing.entries
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
