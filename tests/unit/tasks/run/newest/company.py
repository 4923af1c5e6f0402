"""Calls that find another one at work, and what they and the tests see of it."""

from __future__ import annotations

from typing import Any

from celery_redlock.tasks.rules.facts import Role
from tests.support.events import counters
from tests.support.tasks import Bench
from tests.support.ticks import tick
from tests.support.unique import KEY, holder, owned_by
from tests.unit.tasks import jobs

COMPANION = f"redlock-meta:running:{KEY}"


def job(bench: Bench, policy: str = "stop", body: Any = None, **options: Any) -> Any:
    """Declare a task with this `lock_on_conflict`."""
    return jobs.job(bench, body, lock_on_conflict=policy, **options)


def occupy(bench: Bench, **facts: Any) -> Any:
    """Hold the lock as another call does."""
    return owned_by(bench, "other", Role.RUNNING, KEY, COMPANION, **facts)


def occupy_for(bench: Bench, seconds: float) -> Any:
    """Hold the lock as the run for the tick does that was due so many seconds from now."""
    return occupy(bench, due_us=tick(seconds).due_us)


def next_one(bench: Bench) -> str | None:
    """Return the id of the task that is to have the lock next, if one has asked for it."""
    found = holder(bench, COMPANION)
    return found.task_id if found is not None and found.role is Role.QUEUED else None


def told(before: dict[str, int]) -> dict[str, int]:
    """Return what has been counted since, and how often."""
    after = counters()
    return {kind: after[kind] - before[kind] for kind in after if after[kind] != before[kind]}
