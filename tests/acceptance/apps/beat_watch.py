"""
What a beat's process notes of itself; nothing here knows the package.

The stage names the beat, its schedule and its files: see `tests.acceptance.beat.beats`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from celery import signals
from celery.schedules import crontab

from tests.acceptance.apps.beat_pulse import start_pulse
from tests.acceptance.apps.beat_schedules import Aligned
from tests.acceptance.apps.stage import STAGE, app
from tests.acceptance.apps.visible import instant, note

BEAT = STAGE["beat"]
KINDS = {"crontab": crontab, "aligned": Aligned}


def _entry(told: dict[str, Any]) -> dict[str, Any]:
    match told["schedule"]:
        case [kind, options]:
            return {**told, "schedule": KINDS[kind](**options)}
        case _:
            return told


app.conf.beat_schedule = {name: _entry(told) for name, told in BEAT["schedule"].items()}


def hold_up(moment: str) -> None:
    """Stand still at this moment of a publish for as long as it has a gate."""
    gate = Path(f"{BEAT['gate']}.{moment}")
    if not gate.exists():
        return
    note(BEAT["key"], "held up", beat=BEAT["name"], at=instant())
    while gate.exists():
        time.sleep(0.02)


@signals.beat_init.connect
def begin(**_: Any) -> None:
    """Watch from now on: where a beat is part of a worker, other processes publish too."""
    start_pulse(BEAT["pulse"])
    signals.before_task_publish.connect(note_deciding)
    signals.after_task_publish.connect(note_sending)


def note_deciding(**_: Any) -> None:
    hold_up("before")


def note_sending(headers: dict[str, Any], **_: Any) -> None:
    tick = headers.get("redlock", {}).get("tick", {})
    note(
        BEAT["key"],
        "sent",
        beat=BEAT["name"],
        at=instant(),
        id=headers["id"],
        task=headers["task"],
        entry=tick.get("entry"),
        due=tick.get("due"),
        token=tick.get("token"),
    )
    hold_up("after")
