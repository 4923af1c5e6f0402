"""
Tasks of every mode that locks at publish, whose one body ends as its caller asks.

`declare` gives them to an app: a worker's, and that of a publisher in the test's own process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery import Celery, chain, chord
from celery.exceptions import Ignore, Reject

from celery_redlock import RedlockTask, is_duplicate
from tests.acceptance.apps.visible import await_gate, note, times, visiting

MODES = ("until_executing", "until_executed", "until_and_while_executing", "until_expired")
FREE_AT_THE_END = MODES[:3]
# Short enough to wait it out; the others hold for 30 s, so that a release is told from an end.
SHORT_TTL = 3.0
WINDOW = 60.0
# Longer than a task takes that is not held up, short enough to wait it out.
BRIEF_WINDOW = 5.0
BRIEFLY = "until_expired.brief"
RETRY_DELAY = 0.5
# `lock_debounce`: shorter than what a dead publisher leaves behind.
DEBOUNCE = (1.0, 3.0)
# After which the lock of a publisher that dies is free, in `unique_sender`.
GRACE = 2.0


def _hold(self: Any, key: str, run: int) -> str:
    return "held"


def _last(self: Any, key: str, run: int) -> str:
    """Go on for much longer than the broker waits for an acknowledgement in these tests."""
    time.sleep(10)
    return "held"


def _fail(self: Any, key: str, run: int) -> None:
    raise ValueError("on purpose")


def _ignore(self: Any, key: str, run: int) -> None:
    raise Ignore


def _reject(self: Any, key: str, run: int) -> None:
    raise Reject("on purpose", requeue=False)


def _put_back(self: Any, key: str, run: int) -> str:
    if run == 1:
        raise Reject("on purpose", requeue=True)
    return "held"


def _retry(self: Any, key: str, run: int) -> str:
    if run == 1:
        raise self.retry(countdown=RETRY_DELAY)
    return "held"


def _retry_at_once(self: Any, key: str, run: int) -> str:
    if run == 1:
        raise self.retry(countdown=0)
    return "held"


def _retry_quietly(self: Any, key: str, run: int) -> str:
    if run == 1:
        self.retry(countdown=RETRY_DELAY, throw=False)
        return "not raised"
    return "held"


def _retry_in_vain(self: Any, key: str, run: int) -> None:
    raise self.retry(exc=ValueError("on purpose"), countdown=RETRY_DELAY, max_retries=1)


def _autoretry(self: Any, key: str, run: int) -> str:
    if run == 1:
        raise ConnectionError("on purpose")
    return "held"


def _autoretry_in_vain(self: Any, key: str, run: int) -> None:
    raise ConnectionError("on purpose")


def _replace_by_itself(self: Any, key: str, run: int) -> str:
    if run == 1:
        raise self.replace(self.si(key))
    return "held"


def _replace_by_another(self: Any, key: str, run: int) -> None:
    raise self.replace(self.app.tasks["unique.plain"].si(key))


def _replace_by_a_chain(self: Any, key: str, run: int) -> None:
    raise self.replace(chain(self.app.tasks["unique.plain"].si(key), self.si(key)))


def _replace_by_a_chord(self: Any, key: str, run: int) -> None:
    header = [self.si(key), self.app.tasks["unique.plain"].si(key)]
    raise self.replace(chord(header, self.app.tasks["unique.tally"].s(key)))


def _send_itself(self: Any, key: str, run: int) -> list[Any]:
    again = self.delay(key)
    return [again.id, is_duplicate(again)]


ENDINGS: dict[str, Callable[[Any, str, int], Any]] = {
    ending.__name__.removeprefix("_"): ending
    for ending in (
        _hold,
        _last,
        _fail,
        _ignore,
        _reject,
        _put_back,
        _retry,
        _retry_at_once,
        _retry_quietly,
        _retry_in_vain,
        _autoretry,
        _autoretry_in_vain,
        _replace_by_itself,
        _replace_by_another,
        _send_itself,
        _replace_by_a_chain,
        _replace_by_a_chord,
    )
}


def _act(self: Any, key: str, how: str = "hold", gate: str = "") -> Any:
    """Wait for the gate "go", for this run's own, or for one that the caller names."""
    run = times(key)
    with visiting(self, key):
        await_gate(key, f"run-{run}", *([gate] if gate else []))
        return ENDINGS[how](self, key, run)


def _ran(self: Any, key: str, number: int = 0) -> int:
    note(key, "ran", number=number, id=self.request.id, at=time.time())
    return number


def _tell(self: Any, key: str) -> None:
    note(key, "called back")


def _tally(self: Any, values: list[Any], key: str) -> list[Any]:
    note(key, "tallied", values=values)
    return values


def _follow(self: Any, value: Any, key: str) -> Any:
    note(key, "followed", value=value)
    return value


class Refused(Exception):
    """What the policy of "unique.decide" raises, wherever it is asked."""


def _decide(task: Any, conflict: Any) -> str:
    if task.app.main == "publisher":
        raise Refused(conflict.key, conflict.holder)
    return "existing"


class HeldUp(RedlockTask):
    """A task with a gate after its lock was taken and before its body begins."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        note(args[0], "adopted")
        await_gate(args[0], "body")
        return self.run(*args, **kwargs)


def declare(app: Celery) -> None:
    """Give an app all these tasks."""
    plain: dict[str, Any] = {
        "bind": True,
        "shared": False,
        "autoretry_for": (ConnectionError,),
        "default_retry_delay": RETRY_DELAY,
        "max_retries": 1,
    }
    late = {"acks_late": True, "reject_on_worker_lost": True}
    app.task(_tell, name="unique.tell", bind=True, shared=False)
    app.task(_tally, name="unique.tally", bind=True, shared=False)
    app.task(_follow, name="unique.follow", bind=True, shared=False)
    app.task(_act, name="unique.plain", **plain)
    app.task(_act, name="unique.plain.late", **plain, **late)
    windows = {"until_expired": WINDOW, BRIEFLY: BRIEF_WINDOW}
    for what in (*MODES, BRIEFLY):
        name = f"unique.{what}"
        options = {**plain, "base": RedlockTask, "lock_key": "{key}"}
        options["lock_mode"] = what.partition(".")[0]
        if what in windows:
            options["lock_window"] = windows[what]
        short = {**options, "lock_ttl": SHORT_TTL}
        app.task(_act, name=name, **options)
        app.task(_act, name=f"{name}.short", **short)
        app.task(_act, name=f"{name}.late", **options, **late)
        app.task(_act, name=f"{name}.late.short", **short, **late)
        for ack in ("", ".late"):
            held = {**short, **(late if ack else {})}
            app.task(_act, name=f"{name}{ack}.held_back", **held)
            app.task(_act, name=f"{name}{ack}.held_up", **{**held, "base": HeldUp})
    options = {**plain, "base": RedlockTask, "lock_mode": "until_executed", "lock_key": "{key}"}
    for policy, value in (("raise", "raise"), ("replace", "replace"), ("decide", _decide)):
        app.task(_act, name=f"unique.{policy}", lock_on_duplicate=value, **options)
    options = {**options, "lock_mode": "until_and_while_executing"}
    app.task(_act, name="unique.reject.late", lock_on_conflict="reject", **options, **late)
    options = {"base": RedlockTask, "bind": True, "shared": False, "lock_key": "{key}"}
    for mode in ("until_executing", "until_and_while_executing"):
        # A worker that is killed after its acknowledgement takes the end of a call with it.
        options |= {"lock_mode": mode, "lock_debounce": DEBOUNCE, **late}
        app.task(_ran, name=f"unique.debounced.{mode}", **options)
