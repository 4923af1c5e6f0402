"""Tasks whose keys are paused, which note when they are requeued and when they run."""

from __future__ import annotations

from typing import Any

from celery_redlock import RedlockTask, pause
from celery_redlock.signals import task_requeued
from tests.acceptance.apps.stage import app
from tests.acceptance.apps.visible import first_time, instant, note


def _run(self: Any, key: str) -> None:
    note(key, "ran", id=self.request.id, at=instant())


BASE = {"base": RedlockTask, "bind": True, "lock_key": "{key}"}

app.task(_run, name="pausing.run", **BASE)
app.task(_run, name="pausing.run_late", acks_late=True, **BASE)
app.task(_run, name="pausing.skipping", lock_on_conflict="skip", **BASE)
app.task(_run, name="pausing.unique", lock_mode="until_executed", **BASE)
app.task(_run, name="pausing.rated", lock_rate="50/s", **BASE)

#: Seconds for which a body pauses its own key.
RETRY_AFTER = 2.0


@app.task(name="pausing.told_to_wait", **BASE)
def _told_to_wait(self: Any, key: str) -> None:
    if first_time(key):
        note(key, "pauses", until=instant() + RETRY_AFTER)
        pause(key, RETRY_AFTER, app=self.app)
        raise self.retry(countdown=0)
    note(key, "ran", id=self.request.id, at=instant())


@task_requeued.connect
def _note_requeue(sender: Any, task_id: str, delay: float, **_: Any) -> None:
    if sender.name.startswith("pausing."):
        note(sender.request.args[0], "requeued", id=task_id, delay=delay)
