"""When a schedule was due last, as every beat has to find it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from celery import Celery


def of(kind: Any, *args: Any, zone: str | None = None, utc: bool = True, **options: Any) -> Any:
    """Make a schedule of an app in this zone."""
    app = Celery("dues", set_as_current=False)
    app.conf.update(timezone=zone, enable_utc=utc)
    return kind(*args, app=app, **options)


# Crontabs


HOST_CLOCK = """
from datetime import UTC, datetime
from celery import Celery
from celery.schedules import crontab
from celery_redlock.schedules.due_times import latest_due
app = Celery("dues")
app.conf.enable_utc = False
now = datetime(2026, 3, 10, 22, tzinfo=UTC)
due = latest_due(crontab(0, 12, app=app), now, now)
print(datetime.fromtimestamp(due, UTC).isoformat())
"""


@pytest.mark.parametrize(("zone", "hour"), [("America/New_York", 16), ("Europe/Berlin", 11)])
def test_without_utc_and_without_a_zone_the_hosts_clock_counts(zone: str, hour: int) -> None:
    # In a process of its own: the zone of a process is looked up once.
    ran = subprocess.run(
        [sys.executable, "-c", HOST_CLOCK],
        env={**os.environ, "TZ": zone},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == f"2026-03-10T{hour}:00:00+00:00"


# The sun


# Intervals


# Whatever else there is


# What Celery finds due again
