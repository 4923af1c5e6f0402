"""
A small program of a user's, for `mypy --strict` against the installed wheel, and to be run.

What Celery decorates is untyped, because Celery is; everything of this package is typed.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import assert_type

from celery_redlock import (
    AsyncLease,
    AsyncRedlock,
    DuplicateResult,
    Lease,
    LeaseLost,
    LockContended,
    LockHolder,
    LockNotAcquired,
    Redlock,
    RedlockError,
    RedlockTask,
    StaleFencingToken,
    TaskLockOptions,
    current_lease,
    is_duplicate,
    lock_options,
)
from celery_redlock.fencing import FileFence, fencing_headers
from celery_redlock.testing import LocalCluster


class Settle(RedlockTask):
    """A task that is written as a class."""

    name = "settle"
    lock_key = "account:{account}"
    lock_ttl = 10.0

    def run(self, account: int) -> bool:
        """Say whether it runs under its lock."""
        lease = self.lease
        assert_type(lease, Lease | None)
        return lease is not None and lease.is_valid


def declared() -> list[TaskLockOptions]:
    """Return lock options whose names and values the type checker knows."""
    policies = lock_options(
        lock_key=["account:{account}", lambda account: f"bank:{account}"],
        lock_mode="until_executed",
        lock_ttl=timedelta(minutes=1),
        lock_on_duplicate="raise",
        lock_on_conflict="requeue",
        lock_on_lost=lambda task, lease: "flag" if lease.lost else "interrupt",
    )
    assert_type(policies, TaskLockOptions)
    wrong = [
        lock_options(lock_mode="until_exceuted"),  # type: ignore[arg-type]
        lock_options(lock_ttl="30"),  # type: ignore[arg-type]
        lock_options(lock_tll=30),  # type: ignore[call-arg]
        lock_options(lock_on_conflict={"runs": "skip"}),  # type: ignore[arg-type]
    ]
    return [policies, *wrong]


def report(redlock: Redlock, path: Path) -> int:
    """Write a file under a lock."""
    with redlock.lock("report", ttl=10.0, wait=5.0) as lease:
        assert_type(lease, Lease)
        lease.check()
        FileFence(path).write(b"report", lease.fencing_token)
        headers: dict[str, str] = fencing_headers(token=lease.fencing_token)
        print(lease.key, lease.expires_in, *headers)
        return lease.fencing_token


async def report_async(redlock: AsyncRedlock) -> int:
    """Hold a lock in an event loop."""
    async with redlock.lock("report", ttl=10.0, wait=5.0, on_lost="flag") as lease:
        assert_type(lease, AsyncLease)
        await lease.extend(5.0)
        return lease.fencing_token


def attempt(redlock: Redlock, path: Path) -> str:
    """Tell what came of it."""
    try:
        token = report(redlock, path)
    except LockContended as contended:
        return f"{contended.holder} has {contended.key}"
    except (LockNotAcquired, LeaseLost, StaleFencingToken) as error:
        return type(error).__name__
    except RedlockError:
        return "another error of this package"
    assert_type(current_lease(), Lease | None)
    return f"done under {token}"


def holder_of(task: Settle, account: int) -> LockHolder | None:
    """Ask who has an account."""
    return task.lock_holder(account)


def was_sent(result: object) -> bool:
    """Return whether a call was sent, as far as its result shows it."""
    if is_duplicate(result):
        assert_type(result, DuplicateResult)
        return False
    return True


def nodes() -> list[str]:
    """Return addresses of nodes that are real."""
    with LocalCluster(3) as cluster:
        return cluster.urls


if __name__ == "__main__":
    with Redlock(["memory://a", "memory://b", "memory://c"]) as here:
        print(attempt(here, Path("report")))
    print(asyncio.run(report_async(AsyncRedlock("memory://alone"))) > 0)
