"""The tasks that workers run; what they do is noted in a list of the store."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery
from redis import Redis

from celery_redlock import LeaseLost, RedlockTask
from celery_redlock.signals import redelivery_ignored

MODES = ("until_executing", "until_executed", "until_and_while_executing", "until_expired")

#: Long enough that no window ends before a scene does.
WINDOW = 600.0

#: Seconds that the body of a race takes, and its TTL: a killed worker's lock ends by itself. A call
#: that comes late finds a newer body running, and not a key that is free again (decision 0033).
NEWEST_TAKES, NEWEST_TTL = 3.0, 10.0

#: `lock_debounce` of the debounced task.
QUIET, AT_MOST = 1.0, 3.0

#: The journal of the deliveries that ended because another one of their message had ended.
IGNORED = "ignored"

stage: dict[str, Any] = json.loads(os.environ["CALLS_STAGE"])

app = Celery("calls", broker=stage["broker"], backend=stage["backend"])
app.conf.update(stage["conf"])

_store = Redis.from_url(stage["journal"])


def note(scene: str, *entry: Any) -> None:
    """Add an entry to a scene's journal."""
    _store.rpush(scene, json.dumps(entry))


def _body(self: Any, key: str, scene: str, seconds: float = 0.0, number: int = 0) -> str:
    note(scene, "begun", key, self.request.id, number)
    if seconds:
        time.sleep(seconds)
    note(scene, "ended", key, self.request.id, number)
    return key


def declare(mode: str, policy: str) -> Any:
    """Declare the unique task of a mode and a policy."""
    options = {"lock_window": WINDOW} if mode == "until_expired" else {}
    return app.task(
        base=RedlockTask,
        bind=True,
        name=f"{mode}.{policy}",
        lock_key="{scene}:{key}",
        lock_mode=mode,
        lock_on_duplicate=policy,
        acks_late=stage["setup"]["late"],
        **options,
    )(_body)


UNIQUE = {
    (mode, policy): declare(mode, policy) for mode in MODES for policy in ("existing", "replace")
}


@app.task(
    base=RedlockTask,
    bind=True,
    lock_key="{key}",
    lock_on_conflict="stop",
    lock_ttl=NEWEST_TTL,
    acks_late=stage["setup"]["late"],
)
def newest(self: Any, key: str, scene: str, number: int) -> None:
    """Work until a newer call asks it to stop, or for a while."""

    def say(what: str) -> None:
        note(scene, what, key, self.request.id, number, time.time(), os.getpid())

    say("begun")
    try:
        time.sleep(NEWEST_TAKES)
    except LeaseLost:
        say("stopped")
        raise
    say("ended")


def _debounced(key: str, scene: str, number: int) -> None:
    note(scene, "begun", key, number, time.time())


DEBOUNCED = app.task(
    base=RedlockTask,
    name="debounced",
    lock_key="{scene}:{key}",
    lock_debounce=(QUIET, AT_MOST),
    acks_late=stage["setup"]["late"],
)(_debounced)


@redelivery_ignored.connect
def note_ignored(task_id: str, **_: Any) -> None:
    """Add a delivery that ended without its body."""
    note(IGNORED, task_id)


@app.task
def resend(_result: Any, mode: str, key: str, scene: str, number: int, seconds: float = 0.0) -> str:
    """Call the task whose end has sent this one again; return the id of the call."""
    sent = UNIQUE[mode, "existing"].delay(key, scene, seconds, number)
    return str(sent.id)


@app.task
def collect(values: list[Any], scene: str) -> int:
    note(scene, "collected", *values)
    return len(values)
