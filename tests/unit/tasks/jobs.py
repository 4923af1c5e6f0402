"""Tasks and messages that several tests of tasks need."""

from __future__ import annotations

from typing import Any

from tests.support.tasks import Bench
from tests.support.unique import MODES, declare

ALL_MODES = ("while_executing", *MODES)


def job(bench: Bench, body: Any = None, **options: Any) -> Any:
    """Declare a task that locks while it runs, and does not wait where its lock is taken."""
    return declare(bench, body, **{"lock_mode": "while_executing", **options})


def sent_without(bench: Bench, body: Any = None, **options: Any) -> dict[str, Any]:
    """Declare a unique task, and send it as a program does that does not know us."""
    declare(bench, body, **options)
    bench.app.finalize()
    bench.app.send_task("job")
    return bench.receive()
