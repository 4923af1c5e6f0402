"""
`RedlockTask`: a Celery task whose body runs under a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from celery import Task
from celery.app.task import Context

from celery_redlock.core import Lease
from celery_redlock.tasks.keys import KeyMaker
from celery_redlock.tasks.options import resolve_options
from celery_redlock.tasks.run import LockPlan, connect_backstop, lease_of, run_locked
from celery_redlock.tasks.settings import read_settings

__all__ = ["RedlockTask", "plan_lock"]

# Class attributes of Celery's request are defaults, and never travel in a message's headers.
Context.fencing_token = None
Context.redlock_entered = False


class RedlockTask(Task):  # type: ignore[misc]  # Celery is untyped
    """
    A task whose body runs under a quorum lock; nothing locks until a `lock_*` option is set.

    While bodies are within the clock bounds of the deployment, no two bodies with one key run at
    once. Where that is broken from outside, `self.request.fencing_token` still grows from holder
    to holder, so that a resource that checks it can refuse the late one.

    The lock is taken once for each request in a worker or under `apply()`. A plain call
    `task(...)` does not lock.

    Example:
        ```python
        @app.task(base=RedlockTask, bind=True, lock_key="account:{account_id}", lock_ttl=30)
        def settle(self, account_id, amount=0):
            ledger.write(account_id, amount, fencing_token=self.request.fencing_token)
        ```
    """

    abstract = True
    redlock_plan: LockPlan | None = None

    @classmethod
    def bind(cls, app: Any) -> Any:
        """Bind the class to an app; unusable lock options are reported here."""
        bound = super().bind(app)
        plan_lock(cls, app)
        return bound

    @property
    def lease(self) -> Lease | None:
        """The lease under which this task's body runs, or None."""
        return lease_of(self)


def plan_lock(cls: Any, app: Any) -> None:
    """
    Read a task class's lock options, and make the class lock if it has any.

    Celery calls `run` directly unless the class has a `__call__` of its own. Only classes that
    lock get one, so that the others run at plain speed.

    Raises:
        ConfigurationError: an option cannot work as written.
        LockKeyError: `lock_key` does not fit the task's arguments.
    """
    if not cls.name:
        return
    settings = read_settings(app)
    options = resolve_options(cls, settings)
    if options is None:
        cls.redlock_plan = None
        return
    cls.redlock_plan = LockPlan(
        options=options, keys=KeyMaker(cls, options.key), lost_signal=settings.lost_signal
    )
    if not getattr(cls.__call__, "celery_redlock", False):
        cls.__call__ = _locking_call(cls)
    connect_backstop()


def _locking_call(cls: Any) -> Callable[..., Any]:
    own = cls.__mro__[: cls.__mro__.index(Task)]
    inner = cls.__call__ if any("__call__" in vars(node) for node in own) else None

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  # it becomes one
        request = self.request_stack.top
        plan = self.redlock_plan
        if plan is None or request is None or request.called_directly or request.redlock_entered:
            return (inner or Task.__call__)(self, *args, **kwargs)
        request.redlock_entered = True
        request.fencing_token = None
        if inner is not None:
            return run_locked(self, request, plan, partial(inner, self), args, kwargs)
        # As Celery does where it skips `__call__`: a plain call from inside the body then gets a
        # request of its own.
        request._protected = 1
        return run_locked(self, request, plan, self.run, args, kwargs)

    __call__.celery_redlock = True  # type: ignore[attr-defined]  # marks the class as locking
    return __call__
