"""The schedule file of a `PersistentScheduler`, which beats without this package read too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from celery.beat import PersistentScheduler
from celery.schedules import crontab, schedule

from tests.support import forked
from tests.unit.tasks.ticks.simulated import START, SimulatedBeat

SCHEDULE = {
    "interval": {"task": "job", "schedule": 7},
    "relative": {"task": "job", "schedule": schedule(3600, relative=True)},
    "crontab": {"task": "job", "schedule": crontab()},
}

#: A beat on another host, on which this package is not installed.
STRANGER = """
import json, shelve, sys
class Nothing:
    def find_spec(self, name, *rest):
        if name.startswith("celery_redlock"):
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
with shelve.open(sys.argv[1]) as store:
    print(json.dumps({
        name: [
            type(entry.schedule).__module__,
            type(entry.schedule).__name__,
            str(entry.last_run_at),
        ]
        for name, entry in store["entries"].items()
    }))
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "celerybeat-schedule")


def beat(path: str, start: Any = START, **options: Any) -> SimulatedBeat:
    return SimulatedBeat(
        start,
        conf={"beat_schedule": SCHEDULE},
        scheduler_class=PersistentScheduler,
        scheduler_options={"schedule_filename": path},
        **options,
    )


def read_elsewhere(path: str) -> Any:
    ran = forked.run("-c", STRANGER, path, loaded=forked.CELERY)
    return json.loads(ran.stdout)


def test_a_process_without_this_package_reads_what_a_stamping_beat_has_stored(path: str) -> None:
    one = beat(path)
    one.run(130)
    one.scheduler.close()
    found = read_elsewhere(path)
    assert {name: kind for name, (*kind, _) in found.items()} == {
        "interval": ["celery.schedules", "schedule"],
        "relative": ["celery.schedules", "schedule"],
        "crontab": ["celery.schedules", "crontab"],
    }
    assert found["interval"][2].startswith("2026-03-10 12:02:0")
