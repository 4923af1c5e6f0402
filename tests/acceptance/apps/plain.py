"""Plain tasks: they stand beside locked ones in canvases, and take no lock."""

from __future__ import annotations

from typing import Any

from tests.acceptance.apps.stage import app, await_gate, visiting


@app.task(name="echo")
def echo(value: Any) -> Any:
    return value


@app.task(name="tally")
def tally(values: list[Any]) -> list[Any]:
    return values


@app.task(name="send_events")
def send_events() -> None:
    """Let this process send events from now on, as if its worker had been started with them."""
    app.conf.worker_send_task_events = True


@app.task(name="hold_nothing", bind=True)
def hold_nothing(self: Any, key: str) -> str:
    with visiting(self, key):
        await_gate(key)
    return "held nothing"


@app.task(name="hold_nothing_late", bind=True, acks_late=True, reject_on_worker_lost=True)
def hold_nothing_late(self: Any, key: str) -> str:
    with visiting(self, key):
        await_gate(key)
    return "held nothing"


@app.task(name="vendor.hold", bind=True)
def vendor_hold(self: Any, key: str) -> str:
    """A task whose code is somebody else's: only the setting `redlock_tasks` reaches it."""
    with visiting(self, key):
        await_gate(key)
    return "vendor held"
