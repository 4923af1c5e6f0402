"""Several beats for a schedule in Django's database, of which one leads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.beat.beats import APPS, LEADER, REDLOCK, TASKS
from tests.acceptance.beat.checker import (
    check_arrival,
    check_dated,
    check_once,
    check_reigns,
)
from tests.acceptance.beat.conftest import StartBeat
from tests.acceptance.beat.scenes import Watch, assert_none, end_all, settled
from tests.acceptance.program import ROOT
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.full

TTL = 4.0
DJANGO = {"DJANGO_SETTINGS_MODULE": f"{APPS}.beat_django_settings"}

Edit = Callable[[str, str, str], str]


@pytest.fixture
def edit(tmp_path: Path) -> Edit:
    """Make or change the schedule's entry, in a process of its own."""
    database = str(tmp_path / "schedule.sqlite3")

    def edit(verb: str, key: str, note: str) -> str:
        words = ["-m", f"{APPS}.beat_database", verb, f"job of {key}", json.dumps([key, note])]
        stage = {"ACCEPTANCE_STAGE": json.dumps({"database": database})}
        subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, **DJANGO, **stage},
            check=True,
            timeout=2 * TIMEOUT,
        )
        return database

    return edit


def test_a_schedule_in_a_database_fails_over_and_can_be_changed_while_it_is_in_use(
    worker: Worker, key: str, journal: Journal, start_beat: StartBeat, edit: Edit
) -> None:
    database = edit("make", key, "before")
    beats = [
        start_beat(
            worker,
            {},
            scheduler=REDLOCK,
            conf={"redlock_beat_ttl": TTL, "redlock_beat_scheduler": "django"},
            include=(TASKS, LEADER),
            environment=DJANGO,
            database=database,
        )
        for _ in range(3)
    ]
    watch = Watch(journal, beats)
    watch.wait_until_sent(2)

    edit("change", key, "after")
    journal.wait_for("after")
    leader, token = watch.leader
    leader.kill()
    watch.wait_for_leader_after(token)
    watch.wait_until_sent(2)
    end_all(*beats)

    history = settled(worker, journal)
    assert_none(check_dated(history.runs))
    assert_none(check_once(history.runs))
    assert_none(check_reigns(history))
    assert_none(check_arrival(history, excused=["tick_superseded"]))
    # What was changed stays so, under the next leader too.
    notes = [note for note in journal.entries if note["event"] in ("before", "after")]
    # Two bodies may write in another order than that in which their ticks were due.
    told = [note["event"] for note in sorted(notes, key=lambda note: float(note["due"]))]
    assert told == sorted(told, reverse=True)
