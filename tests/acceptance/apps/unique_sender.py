"""
A process that publishes one task, and stands still when it has the lock and not yet the message.

Run as `python -m tests.acceptance.apps.unique_sender TASK KEY`.
"""

from __future__ import annotations

import sys
from typing import Any

from celery import Celery, signals

from celery_redlock.tasks.message import expiry
from tests.acceptance.apps.unique_tasks import GRACE, declare
from tests.acceptance.apps.visible import await_gate, note, stage


@signals.before_task_publish.connect
def stand_still(body: Any, **_: Any) -> None:
    (key,) = body[0]
    note(key, "publishing")
    await_gate(key)


def main(name: str, key: str) -> None:
    expiry.PUBLISH_GRACE = GRACE
    urls, conf = stage()["urls"], stage()["conf"]
    app = Celery("sender", broker=urls["broker"], backend=urls["backend"])
    app.conf.update({option: value for option, value in conf.items() if option != "include"})
    declare(app)
    app.tasks[name].apply_async((key,))


if __name__ == "__main__":
    main(*sys.argv[1:])
