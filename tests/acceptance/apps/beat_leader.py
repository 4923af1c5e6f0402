"""What a beat that may lead notes of its leadership, from the package's public signals."""

from __future__ import annotations

from typing import Any

from celery_redlock.signals import beat_leader_started, beat_leader_stopped
from tests.acceptance.apps.beat_watch import BEAT
from tests.acceptance.apps.visible import instant, note


def note_leadership(signal: Any, **_: Any) -> None:
    note(BEAT["key"], signal.name, beat=BEAT["name"], at=instant())


for _signal in (beat_leader_started, beat_leader_stopped):
    _signal.connect(note_leadership)
