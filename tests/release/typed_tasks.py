"""
A user's tasks, for type checkers: what they know of the decorator, its options and the request.

Celery ships no types. Where `celery-types` is not installed, what Celery decorates has none.
"""

from __future__ import annotations

from typing import assert_type

from celery import Celery

from celery_redlock import Lease, LockHolder, RedlockTask, TaskLockOptions, Tick, lock_options

#: Whether `celery-types` is installed; the type checkers are told.
CELERY_TYPES = False

app = Celery("shop", broker="memory://")
unique: TaskLockOptions = {"lock_key": "account:{account}", "lock_mode": "until_executed"}
wrong: TaskLockOptions = {"lock_mode": "until_exceuted"}  # type: ignore[typeddict-item] # pyright: ignore[reportAssignmentType]
misspelt = lock_options(lock_kay="account")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


@app.task(base=RedlockTask, bind=True, **lock_options(lock_key="account:{account}", lock_ttl=30))
def settle(self: RedlockTask, account: int) -> int | None:
    assert_type(self.request.fencing_token, int | None)
    assert_type(self.request.tick, Tick | None)
    assert_type(self.lease, Lease | None)
    print(self.request.id, self.request.retries)
    return self.request.fencing_token


@app.task(base=RedlockTask, acks_late=True, **unique)
def audit(account: int) -> None: ...


@app.task(base=RedlockTask, lock_key="account:{account}", lock_ttl=30)
def report(account: int) -> None: ...


class Pay(RedlockTask):
    name = "pay"
    lock_key = "account:{account}"

    def run(self, account: int) -> int | None:
        assert_type(self.lease, Lease | None)
        return self.request.fencing_token


def ask(task: RedlockTask, account: int) -> bool:
    assert_type(task.lock_holder(account), LockHolder | None)
    assert_type(task.revoke_queued(account), LockHolder | None)
    return task.release_lock(account)


if CELERY_TYPES:
    assert_type(settle, RedlockTask)
    assert_type(audit, RedlockTask)
    assert_type(report, RedlockTask)
    assert_type(app.register_task(Pay()), Pay)
    ask(settle, 7)
    audit.delay(7)
    print(settle.request.fencing_tokn)  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
