"""The bodies of the tasks: what they do, how they fail, and what follows them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from celery import Celery

from celery_redlock import RedlockTask, is_duplicate
from celery_redlock.core.lease import holding_of
from celery_redlock.errors import DuplicateTask, LeaseLost
from celery_redlock.tasks.message import expiry
from evidence.chaos.history import now
from evidence.chaos.tasks.kinds import (
    KINDS,
    PUBLISH_GRACE,
    QUEUE_TTL,
    SKIPPED,
    TAKEN_AWAY,
    WINDOW,
    Kind,
)
from evidence.chaos.tasks.process_journal import Notes

expiry.PUBLISH_GRACE = PUBLISH_GRACE

#: Seconds between two looks at the lease. Where it is taken away, a look and the interruption are
#: to meet as often as can be.
_LOOK = 0.02
_CLOSE_LOOK = 0.002
#: Seconds until a retry is due.
_RETRY_DELAY = 0.1

_numbers = itertools.count(1)


class AgainError(Exception):
    """What a body raises for `autoretry_for`."""


def declare(app: Celery, notes: Notes) -> None:
    """Declare every kind of task, and the plain ones that follow them."""
    for kind in KINDS.values():
        app.task(name=kind.task, base=RedlockTask, bind=True, **_options(kind))(
            _body_of(kind, notes)
        )

    @app.task(name="chaos.follow", bind=True)
    def follow(self: Any, result: Any, call: str) -> Any:
        """Run as a link or as the body of a chord."""
        notes.note("followed", call=call, id=self.request.id)
        return result

    @app.task(name="chaos.resend", bind=True)
    def resend(self: Any, result: Any, kind: str, key: str, call: str, seconds: float) -> Any:
        """Send a task from where it is known that another one has ended."""
        ended = result if isinstance(result, list) else [result]
        knows = [each["id"] for each in ended if isinstance(each, dict)]
        notes.note("followed", call=f"{call}.by", id=self.request.id)
        send(notes, app.tasks[KINDS[kind].task], key, call, knows=knows, seconds=seconds)
        return result


def send(
    notes: Notes,
    task: Any,
    key: str,
    call: str,
    *,
    form: str = "plain",
    knows: list[str] | None = None,
    seconds: float = 0.02,
    retries: int = 0,
    how: str = "retry",
    **options: Any,
) -> Any:
    """
    Send one call of a task and note what came of it.

    Args:
        notes: where to write.
        task: the task.
        key: its lock key.
        call: a name that no other call has.
        form: which kind of call it is, for the history.
        knows: the ids of tasks that are known to have ended.
        seconds: how long its body takes.
        retries: how often the body asks for a retry.
        how: `retry` or `autoretry`.
        options: for `apply_async`.
    """
    kind = task.name.removeprefix("chaos.")
    notes.note("sending", calls=[call], kind=kind, key=key, form=form, knows=knows or [])
    try:
        result = task.apply_async((key, call, seconds, retries, how), **options)
    except DuplicateTask as error:
        notes.note("sent", call=call, answer="refused", id=error.result.id)
        return None
    answer = "duplicate" if is_duplicate(result) else "accepted"
    notes.note("sent", call=call, answer=answer, id=result.id)
    return result


def _options(kind: Kind) -> dict[str, Any]:
    options: dict[str, Any] = {
        "lock_key": "{key}",
        "lock_mode": kind.mode,
        **({} if kind.lock_wait is None else {"lock_wait": kind.lock_wait}),
        "acks_late": kind.acks_late,
        "lock_fair": kind.fair,
        "autoretry_for": (AgainError, LeaseLost),
        "max_retries": None,
        "default_retry_delay": _RETRY_DELAY,
    }
    if kind.at_publish:
        options |= {
            "lock_on_duplicate": kind.policy,
        }
        options |= {"lock_skip_result": SKIPPED} if kind.policy == "existing" else {}
        options |= {"lock_window": WINDOW} if kind.windowed else {"lock_queue_ttl": QUEUE_TTL}
    return options


def _body_of(kind: Kind, notes: Notes) -> Callable[..., Any]:
    def body(
        self: Any,
        key: str,
        call: str,
        seconds: float = 0.02,
        retries: int = 0,
        how: str = "retry",
    ) -> Any:
        request, lease = self.request, self.lease
        name = f"{notes.process}.{next(_numbers)}"
        notes.note(
            "began",
            body=name,
            call=call,
            id=request.id,
            kind=kind.name,
            key=key,
            retries=request.retries,
            token=request.fencing_token,
            until=None if lease is None else holding_of(lease).valid_until,
            redelivered=bool((request.delivery_info or {}).get("redelivered")),
        )
        outcome = "broken off"
        try:
            _work(notes, name, lease, seconds, _CLOSE_LOOK if TAKEN_AWAY in key else _LOOK)
            if request.retries < retries:
                outcome = "retry"
                if how == "autoretry":
                    raise AgainError
                raise self.retry(countdown=_RETRY_DELAY)
            outcome = "done"
        except LeaseLost:
            # Struck in the work, or in the retry that the body had asked for.
            outcome = "lost" if outcome != "retry" else "lost in retry"
            raise
        finally:
            until = None if lease is None else holding_of(lease).valid_until
            notes.note("ended", body=name, how=outcome, until=until)
        return {"id": request.id, "call": call}

    return body


def _work(notes: Notes, body: str, lease: Any, seconds: float, look: float) -> None:
    end = now() + seconds
    known = None if lease is None else holding_of(lease).valid_until
    while (left := end - now()) > 0:
        time.sleep(min(left, look))
        if lease is None:
            continue
        lease.check()
        if holding_of(lease).valid_until != known:
            known = holding_of(lease).valid_until
            notes.note("extended", body=body, until=known)
