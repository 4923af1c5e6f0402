"""A body may release its own lease before it ends; nothing was lost then."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import LockContended, Redlock, current_lease
from tests.support.tasks import Bench
from tests.unit.tasks.jobs import job


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
