"""Asking who has a task's lock, and taking it away."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.errors import ConfigurationError, LockKeyError, QuorumUnavailable
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import declare as unique
from tests.support.unique import mark, owned_by, role
from tests.unit.tasks.jobs import before_next, counting, raising


def declare(bench: Bench, **options: Any) -> Any:
    options = {"lock_key": "{n}", "lock_mode": "until_executed", **options}
    return bench.task(lambda n=1: None, **options)


def test_the_lock_keys_of_a_call_have_no_prefix(bench: Bench) -> None:
    assert declare(bench, lock_key=["a:{n}", "b"]).lock_keys(2) == ("a:2", "b")


def test_the_calls_arguments_choose_the_lock(bench: Bench) -> None:
    task = declare(bench)
    owned_by(bench, "runner", place="redlock:2")
    assert task.lock_holder(1) is None
    assert task.lock_holder(n=2).task_id == "runner"


def test_a_foreign_client_is_shown_as_one(bench: Bench) -> None:
    lease = bench.elsewhere.acquire("1", label="cron on web-3")
    holder = declare(bench).lock_holder(1)
    assert (holder.state, holder.task_id, holder.since) == ("foreign", None, None)
    assert holder.owner == lease.owner


@pytest.mark.parametrize("mode", ["until_executed", "until_and_while_executing"])
def test_a_lock_that_is_taken_away_is_free_for_the_next(bench: Bench, mode: str) -> None:
    task = declare(bench, lock_mode=mode)
    first = task.delay(1)
    owned_by(bench, "runner", place="redlock:2")
    assert task.release_lock(1) is True
    assert task.lock_holder(1) is None
    assert task.delay(1).id != first.id
    assert task.lock_holder(2).task_id == "runner"


@pytest.mark.parametrize("method", ["lock_holder", "release_lock", "revoke_queued"])
def test_it_says_so_when_too_few_nodes_answer(bench: Bench, method: str) -> None:
    task = declare(bench)
    task.delay(1)
    bench.node.kill()
    with pytest.raises(QuorumUnavailable):
        getattr(task, method)(1)


def test_a_call_that_makes_no_key_is_refused(bench: Bench) -> None:
    with pytest.raises(LockKeyError):
        declare(bench).lock_holder(1, 2, 3)


@pytest.mark.parametrize("method", ["lock_keys", "lock_holder", "release_lock"])
def test_a_task_that_does_not_lock_is_asked_in_vain(bench: Bench, method: str) -> None:
    with pytest.raises(ConfigurationError, match="job does not lock; give it a lock_key"):
        getattr(bench.task(lambda: None), method)()


def test_a_message_that_waits_is_revoked_and_the_next_call_is_sent(
    bench: Bench, mode: str, revoked: list[str]
) -> None:
    task = unique(bench, lock_mode=mode)
    first = task.delay()
    waited = task.revoke_queued()
    second = task.delay()
    assert (waited.task_id, waited.state, revoked) == (first.id, "queued", [first.id])
    assert (second.id != first.id, bench.queue_length) == (True, 2)


def test_a_revocation_that_no_worker_gets_does_not_disturb_the_caller(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.app.control.revoke = raising(OSError("no broadcast"))
    task = unique(bench)
    first = task.delay()
    assert task.revoke_queued().task_id == first.id
    assert "could not be revoked: OSError" in caplog.text


def test_a_revoked_message_ends_without_its_body_where_no_worker_heard_of_it(
    bench: Bench, mode: str, revoked: list[str]
) -> None:
    task, runs = counting(unique, bench, lock_mode=mode)
    first = bench.send(task)
    task.revoke_queued()
    second = bench.send(task)
    assert [bench.run(request).state for request in (first, second)] == ["IGNORED", "SUCCESS"]
    assert runs == [second["id"]]
    assert bench.app.AsyncResult(first["id"]).state == "REVOKED"


def test_a_second_delivery_of_a_revoked_message_is_ignored(
    bench: Bench, revoked: list[str]
) -> None:
    task = unique(bench)
    request = bench.send(task)
    task.revoke_queued()
    assert [bench.run(request).state for _ in range(2)] == ["IGNORED", "IGNORED"]
    assert role(bench, mark(bench, request)) is Role.FAILED


def test_a_task_that_runs_is_not_revoked(bench: Bench, revoked: list[str]) -> None:
    found: list[Any] = []
    task = unique(bench, lambda self: found.append(self.revoke_queued()))
    assert bench.call(task).state == "SUCCESS"
    assert (found, revoked) == ([None], [])


def test_there_is_nobody_to_revoke_where_nobody_waits(bench: Bench, revoked: list[str]) -> None:
    assert (unique(bench).revoke_queued(), revoked) == (None, [])


def test_all_keys_of_a_revoked_message_are_free(bench: Bench, revoked: list[str]) -> None:
    task = unique(bench, lock_key=["k", "j"])
    first = task.delay()
    assert task.revoke_queued().task_id == first.id
    assert (revoked, bench.is_held("k"), bench.is_held("j")) == ([first.id], False, False)


def test_a_task_that_locks_while_it_runs_has_no_message_to_revoke(bench: Bench) -> None:
    task = unique(bench, lock_mode="while_executing")
    with pytest.raises(ConfigurationError, match="does not lock at publish"):
        task.revoke_queued()


def test_a_revocation_that_was_broken_off_can_be_repeated(
    bench: Bench, client: Any, revoked: list[str]
) -> None:
    task = unique(bench)
    first = task.delay()
    before_next(client, "evict", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        task.revoke_queued()
    assert task.revoke_queued().task_id == first.id
    assert (bench.is_held("k"), revoked) == (False, [first.id])


def test_the_message_of_another_task_with_the_key_is_not_revoked(
    bench: Bench, revoked: list[str]
) -> None:
    unique(bench).delay()
    other = bench.task(lambda: None, name="other", lock_key="k", lock_mode="until_executed")
    assert (other.revoke_queued(), revoked) == (None, [])


def test_a_broker_that_is_away_does_not_undo_a_revocation(bench: Bench) -> None:
    task = unique(bench)
    first = task.delay()
    bench.app.control.revoke = raising(OSError("no broadcast"))
    assert task.revoke_queued().task_id == first.id
    assert not bench.is_held("k")


def test_the_log_names_the_key_and_the_holder_of_a_lock_that_is_taken_away(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    task = declare(bench)
    owned_by(bench, "runner", place="redlock:1")
    task.release_lock(1)
    assert "Lock '1' of task job is taken away from 'running runner w@host" in caplog.text
