"""A task body under its lock: what the body sees, what it may release, and what is left."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import LockContended, Redlock, RedlockTask, current_lease
from celery_redlock.tasks.run import running_lock
from tests.support.tasks import Bench
from tests.support.unique import declare
from tests.unit.tasks.jobs import before_next, job, raising, retry_once


def test_outside_a_body_there_is_no_lease(bench: Bench) -> None:
    task = job(bench, lambda self: None)
    assert (task.lease, current_lease()) == (None, None)


@pytest.mark.parametrize("declared", [job, declare])
def test_a_plain_call_inside_its_own_body_neither_locks_nor_releases(
    bench: Bench, declared: Any
) -> None:
    def body(self: Any, depth: int = 1) -> list[Any]:
        inner = self(depth=0) if depth else []
        return [*inner, self.lease.fencing_token, bench.is_held("k")]

    inner_token, inner_held, token, held = bench.call(declared(bench, body)).value
    assert (inner_token, inner_held, held) == (token, True, True)


@pytest.mark.parametrize("declared", [job, declare])
def test_a_locking_task_applied_inside_a_body_has_its_own_lease_meanwhile(
    bench: Bench, declared: Any
) -> None:
    inner = declared(bench, lambda self: self.lease.key, name="inner", lock_key="other")

    def body(self: Any) -> list[str]:
        return [current_lease().key, inner.apply().get(), current_lease().key]

    assert bench.call(declared(bench, body)).value == ["k", "other", "k"]
    assert (bench.is_held("k"), bench.is_held("other")) == (False, False)


def test_a_call_of_the_users_own_runs_under_the_lock(bench: Bench) -> None:
    class Traced(RedlockTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
            return [bench.is_held("k"), super().__call__(*args, **kwargs)]

    task = job(bench, lambda self: self.lease.key, base=Traced)
    assert bench.call(task).value == [True, "k"]


def test_the_lease_does_not_travel_in_what_the_body_sends(bench: Bench) -> None:
    bench.call(job(bench, retry_once))
    assert not {"fencing_token", "redlock", "redlock_state"} & set(bench.receive())


def test_a_token_in_a_message_is_not_believed(bench: Bench) -> None:
    task = job(bench, lambda self: self.request.fencing_token)
    assert bench.run(bench.send(task), fencing_token=1).value > 1


def test_a_subclass_of_a_locking_task_uses_its_own_options(bench: Bench) -> None:
    class First(RedlockTask):
        name = "first"
        lock_key = "first"

        def run(self) -> str:
            return str(self.lease.key)

    class Second(First):
        name = "second"
        lock_key = "second"

    tasks = [bench.app.register_task(cls()) for cls in (First, Second)]
    assert [bench.call(task).value for task in tasks] == ["first", "second"]


def test_a_task_annotation_makes_a_redlock_task_lock() -> None:
    bench = Bench(task_annotations={"job": {"lock_key": "annotated"}})
    task = bench.task(lambda self: self.lease.key, bind=True)
    assert bench.call(task).value == "annotated"
    bench.close()


def test_a_release_that_a_signal_cut_short_is_made_up_for_when_the_task_has_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the first one is cut short; it is put back at the end.
    monkeypatch.setattr(running_lock, "release_with", running_lock.release_with)
    before_next(running_lock, "release_with", raising(SystemExit(1)))
    with pytest.raises(SystemExit):
        bench.call(job(bench))
    assert not bench.is_held("k")
    assert current_lease() is None


def release_early(self: Any) -> bool:
    return bool(self.lease.release())


def expire_and_release(self: Any) -> None:
    self.lease.mark_lost()
    self.lease.release()


@pytest.mark.parametrize("mode", ["while_executing", "until_executed"])
def test_a_body_that_releases_its_own_lease_raises_no_alarm(
    bench: Bench, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = job(bench, release_early, lock_key="k", lock_mode=mode)

    assert bench.call(task).value is True
    assert "ended without its" not in caplog.text
    assert not bench.is_held("k")


def test_a_body_that_releases_a_lost_lease_does(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.call(job(bench, expire_and_release, lock_key="k", lock_on_lost="flag"))

    assert "ended without its lock k" in caplog.text


def test_an_eager_task_in_a_block_leaves_the_block_its_lease(bench: Bench) -> None:
    task = job(bench, lambda self: current_lease() is self.lease, lock_key="k")

    with Redlock(bench.node_url) as redlock, redlock.lock("other") as lease:
        assert task.apply().get()
        assert current_lease() is lease


def test_a_block_in_a_body_is_innermost_and_gives_the_bodys_lease_back(bench: Bench) -> None:
    def body(self: Any) -> list[bool]:
        with bench.elsewhere.lock("other") as lease:
            inside = current_lease() is lease
        return [inside, current_lease() is self.lease]

    assert bench.call(job(bench, body, lock_key="k")).value == [True, True]


@pytest.mark.parametrize("mode", ["while_executing", "until_executed"])
def test_a_retry_after_an_early_release_runs_under_a_lock_of_its_own(
    bench: Bench, mode: str
) -> None:
    tokens: list[int] = []

    def release_and_retry(self: Any) -> str:
        tokens.append(self.lease.fencing_token)
        if self.request.retries:
            return "ran"
        self.lease.release()
        raise self.retry(countdown=0)

    task = job(bench, release_and_retry, lock_key="k", lock_mode=mode)

    assert bench.call(task).state == "RETRY"
    assert bench.run(bench.receive()).value == "ran"
    assert tokens[0] < tokens[1]
    assert not bench.is_held("k")


def test_a_body_that_would_wait_for_its_own_lock_is_refused_at_once(bench: Bench) -> None:
    def body(self: Any) -> str:
        with pytest.raises(LockContended, match="not re-entrant"):
            bench.elsewhere.acquire("k", wait=None)
        return "refused"

    assert bench.call(job(bench, body, lock_key="k")).value == "refused"


def test_an_eager_call_in_a_block_that_holds_its_key_fails_at_once(bench: Bench) -> None:
    task = job(bench, lambda self: "ran", lock_key="k")

    with Redlock(bench.node_url) as redlock, redlock.lock("k"):
        error = task.apply().result
    assert isinstance(error, LockContended)
    assert "would wait for the end of its own caller" in str(error)
