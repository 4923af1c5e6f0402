"""The recipe of `choose-a-mode.md` that releases the key of a failed run under `until_expired`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery_redlock import QuorumUnavailable, RedlockTask
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import declare, mark, role
from tests.unit.tasks.jobs import raising


class ReleasedOnFailure(RedlockTask):
    abstract = True

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        with suppress(QuorumUnavailable):
            holder = self.lock_holder(*args, **kwargs)
            if holder is not None and holder.task_id == task_id:
                self.release_lock(*args, **kwargs)


def declared(bench: Bench, body: Any, **options: Any) -> Any:
    return declare(bench, body, base=ReleasedOnFailure, lock_mode="until_expired", **options)


def test_a_run_that_failed_leaves_the_key_free_and_is_not_repeated(bench: Bench) -> None:
    request = bench.send(declared(bench, raising(ValueError("no"))))
    assert bench.run(request).state == "FAILURE"
    assert (role(bench), role(bench, mark(bench, request))) == (None, Role.FINISHED)


def test_a_run_that_succeeded_keeps_the_key_for_its_window(bench: Bench) -> None:
    assert bench.run(bench.send(declared(bench, lambda self: 1))).state == "SUCCESS"
    assert role(bench) is Role.FINISHED


def test_a_retry_keeps_the_key_and_its_failure_frees_it(bench: Bench) -> None:
    def body(self: Any) -> None:
        raise self.retry(exc=ValueError("no"), countdown=1)

    bench.run(bench.send(declared(bench, body, max_retries=1)))
    assert role(bench) is Role.QUEUED
    assert bench.run(bench.receive()).state == "FAILURE"
    assert role(bench) is None


def test_a_duplicate_that_fails_leaves_the_key_to_its_holder(bench: Bench) -> None:
    task = declared(bench, lambda self: 1, lock_on_duplicate="raise")
    bench.run(bench.send(task))
    duplicate = bench.send(task, task_id="duplicate")
    assert bench.run(duplicate).state == "FAILURE"
    assert role(bench) is Role.FINISHED


def test_without_a_quorum_the_failure_is_stored_all_the_same(bench: Bench) -> None:
    def body(self: Any) -> None:
        bench.node.pause()
        raise ValueError("no")

    outcome = bench.run(bench.send(declared(bench, body)))
    bench.node.resume()
    assert (outcome.state, str(outcome.value)) == ("FAILURE", "no")
