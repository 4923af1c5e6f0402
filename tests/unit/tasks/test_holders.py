"""Asking who has a task's lock, and taking it away."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from celery_redlock.errors import ConfigurationError, LockKeyError, QuorumUnavailable
from celery_redlock.tasks.messages.owners import HOST, Role, label_for
from tests.support.tasks import Bench


def declare(bench: Bench, **options: Any) -> Any:
    options = {"lock_key": "{n}", "lock_mode": "until_executed", **options}
    return bench.task(lambda n=1: None, **options)


def running(bench: Bench, key: str = "1", role: Role = Role.RUNNING) -> Any:
    return bench.elsewhere.take((key,), ttl=30, label=label_for(role, "runner", "w@host"))


def test_nobody_holds_a_lock_that_is_free(bench: Bench) -> None:
    assert declare(bench).lock_holder(n=1) is None


def test_a_task_in_the_queue_holds_its_lock(bench: Bench) -> None:
    task = declare(bench, lock_queue_ttl=90)
    before = time.time()
    sent = task.delay(1)
    holder = task.lock_holder(1)
    assert (holder.task_id, holder.state, holder.key) == (sent.id, "queued", "redlock:1")
    assert (holder.host, holder.pid, holder.token) == (HOST, os.getpid(), None)
    assert 0 < holder.expires_in <= 90
    assert datetime.fromtimestamp(before - 1, UTC) < holder.since <= datetime.now(UTC)


def test_a_running_task_has_its_host_and_its_token(bench: Bench) -> None:
    lease = running(bench)
    holder = declare(bench).lock_holder(1)
    assert (holder.task_id, holder.state, holder.host) == ("runner", "running", "w@host")
    assert (holder.token, holder.owner) == (lease.fencing_token, lease.owner)


def test_the_calls_arguments_choose_the_lock(bench: Bench) -> None:
    task = declare(bench)
    running(bench, "2")
    assert task.lock_holder(1) is None
    assert task.lock_holder(n=2).task_id == "runner"


def test_a_foreign_client_is_shown_as_one(bench: Bench) -> None:
    lease = bench.elsewhere.acquire("1", label="cron on web-3")
    holder = declare(bench).lock_holder(1)
    assert (holder.state, holder.task_id, holder.since) == ("foreign", None, None)
    assert holder.owner == lease.owner


def test_who_runs_is_named_before_who_waits(bench: Bench) -> None:
    task = declare(bench, lock_mode="until_and_while_executing")
    sent = task.delay(1)
    assert task.lock_holder(1).task_id == sent.id
    running(bench)
    assert task.lock_holder(1).task_id == "runner"


@pytest.mark.parametrize("mode", ["until_executed", "until_and_while_executing"])
def test_a_lock_that_is_taken_away_is_free_for_the_next(bench: Bench, mode: str) -> None:
    task = declare(bench, lock_mode=mode)
    first = task.delay(1)
    running(bench, "2")
    assert task.release_lock(1) is True
    assert task.lock_holder(1) is None
    assert task.delay(1).id != first.id
    assert task.lock_holder(2).task_id == "runner"


def test_taking_away_what_nobody_has_says_so(bench: Bench) -> None:
    assert declare(bench).release_lock(1) is False


def test_a_running_and_a_waiting_task_both_lose_theirs(bench: Bench) -> None:
    task = declare(bench, lock_mode="until_and_while_executing")
    task.delay(1)
    lease = running(bench)
    assert task.release_lock(1) is True
    assert task.lock_holder(1) is None
    assert lease.release() is False


def test_without_a_quorum_nobody_is_named(bench: Bench) -> None:
    task = declare(bench)
    bench.node.kill()
    with pytest.raises(QuorumUnavailable):
        task.lock_holder(1)
    with pytest.raises(QuorumUnavailable):
        task.release_lock(1)


def test_a_call_that_makes_no_key_is_refused(bench: Bench) -> None:
    with pytest.raises(LockKeyError):
        declare(bench).lock_holder(1, 2, 3)


def test_a_task_that_does_not_lock_has_no_holder(bench: Bench) -> None:
    task = bench.task(lambda: None)
    with pytest.raises(ConfigurationError, match="job does not lock; give it a lock_key"):
        task.lock_holder()
    with pytest.raises(ConfigurationError, match="job does not lock; give it a lock_key"):
        task.release_lock()
