"""When a schedule was due last, as every beat has to find it."""

from __future__ import annotations

import os

import pytest

from tests.support import forked

HOST_CLOCK = """
from datetime import UTC, datetime
from celery import Celery
from celery.schedules import crontab
from celery_redlock.schedules.due_times import latest_due
from celery_redlock.schedules.timeutils import from_us
app = Celery("dues")
app.conf.enable_utc = False
now = datetime(2026, 3, 10, 22, tzinfo=UTC)
due = latest_due(crontab(0, 12, app=app), now, now)
print(from_us(due).isoformat())
"""


@pytest.mark.parametrize(("zone", "hour"), [("America/New_York", 16), ("Europe/Berlin", 11)])
def test_without_utc_and_without_a_zone_the_hosts_clock_counts(zone: str, hour: int) -> None:
    # In a process of its own: the zone of a process is looked up once.
    ran = forked.run("-c", HOST_CLOCK, env={**os.environ, "TZ": zone})
    assert ran.stdout.strip() == f"2026-03-10T{hour}:00:00+00:00"
