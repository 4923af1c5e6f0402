"""The app, set up from the environment."""

from __future__ import annotations

from celery import Celery

from tests.acceptance.apps.visible import await_gate, first_time, note, stage, visiting

__all__ = ["STAGE", "app", "await_gate", "first_time", "note", "visiting"]

STAGE = stage()

app = Celery(
    "acceptance",
    broker=STAGE["urls"]["broker"],
    backend=STAGE["urls"]["backend"],
    include=STAGE["conf"].pop(
        "include",
        [
            f"tests.acceptance.apps.{name}"
            for name in ("plain", "endings", "conflicts", "losses", "retries", "calls")
        ],
    ),
)
app.conf.update(broker_connection_retry_on_startup=True, **STAGE["conf"])
