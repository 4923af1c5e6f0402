"""What a unique task's lock and mark come to on the node of a `Bench`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_redlock.core import client_of
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.node_keys import dedupe_key_for
from celery_redlock.tasks.message.owner_label import TaskOwner, label_for, parse_owner
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench

KEY = "redlock:k"
QUEUE = "redlock-meta:queued:redlock:k"

MODES = ("until_executing", "until_executed", "until_and_while_executing", "until_expired")
WINDOW = 100.0


def declare(bench: Bench, body: Any = None, **options: Any) -> Any:
    """Declare a unique task; `until_executed` unless `lock_mode` says otherwise."""
    options = {"bind": True, "lock_key": "k", "lock_wait": 0, **options}
    options.setdefault("lock_mode", "until_executed")
    if options["lock_mode"] == "until_expired":
        options.setdefault("lock_window", WINDOW)
    return bench.task(body or (lambda self, *args: "ran"), **options)


def value(bench: Bench, place: str = KEY) -> str | None:
    """Return what stands in a place on the node."""
    return bench.node.state.owner(place, bench.node.now_us())


def holder(bench: Bench, place: str = KEY) -> TaskOwner | None:
    """Return the task that has a place."""
    return parse_owner(value(bench, place))


def role(bench: Bench, place: str = KEY) -> Role | None:
    """Return what the task does that has a place; None where it is free."""
    found = holder(bench, place)
    return found.role if found is not None else None


def left(bench: Bench, place: str = KEY) -> float:
    """Return the seconds that a place stays taken if nobody extends it."""
    ends = bench.node.state.keys[place].expires_at
    return float((ends - bench.node.now_us() // 1000) / 1000)


def free(bench: Bench, place: str = KEY) -> None:
    """Let a place end, as its TTL would."""
    bench.node.state.keys.pop(place, None)


def mark(bench: Bench, request: Mapping[str, Any]) -> str:
    """Return the place of a message's mark."""
    return dedupe_key_for(
        client_of(bench.elsewhere),
        Envelope(nonce=Envelope.read(request).nonce),
        task_id=request["id"],
        name=request["task"],
        retries=request.get("retries", 0),
        nesting=request.get("replaced_task_nesting", 0),
    )


def owned_by(
    bench: Bench,
    task_id: str,
    role: Role = Role.RUNNING,
    place: str = KEY,
    *more: str,
    task: str = "job",
    **facts: Any,
) -> Any:
    """Let a call have one place or more, with these facts in its label."""
    places = (place, *more)
    keys = [name.removeprefix("redlock:") for name in places if name.startswith("redlock:")]
    records = [name for name in places if not name.startswith("redlock:")]
    label = label_for(role, task_id, "w@host", task=task, **facts)
    return client_of(bench.elsewhere).acquire_for_task(keys, records, ttl=60, label=label)
