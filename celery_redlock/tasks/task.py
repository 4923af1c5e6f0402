"""
`RedlockTask`: a Celery task whose body runs under a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from celery import Task
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry

from celery_redlock.core import Lease
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.config.plan import LockPlan
from celery_redlock.tasks.config.resolve import default_options, resolve_options
from celery_redlock.tasks.config.settings import RedlockSettings, read_settings
from celery_redlock.tasks.inspection import LockHolder, force_release, lock_holder, revoke_queued
from celery_redlock.tasks.keys.key_maker import KeyMaker
from celery_redlock.tasks.mapping import refuse_items, refuse_mapped
from celery_redlock.tasks.message.duplicate_result import warn_of_unreadable
from celery_redlock.tasks.publish.publish import publish
from celery_redlock.tasks.run.autoretry import end_before_autoretry
from celery_redlock.tasks.run.postrun import connect_postrun
from celery_redlock.tasks.run.run import lease_of, run_locked
from celery_redlock.tasks.run.running_lock import running_lock_of

__all__ = ["RedlockTask", "plan_lock"]

# Class attributes of Celery's request are defaults, and never travel in a message's headers. What a
# message says under these names is not believed.
Context.fencing_token = None
Context.redlock_entered = None
Context.redlock_running_lock = None
Context.redlock_traced = None
Context.tick = None
ENTERED = object()


class RedlockTask(Task):  # type: ignore[misc]  # Celery is untyped
    """
    A task whose body runs under a quorum lock; nothing locks until a `lock_*` option is set.

    While bodies are within the clock bounds of the deployment, no two bodies with one key run at
    once. Where that is broken from outside, `self.request.fencing_token` still grows from holder
    to holder, so that a resource that checks it can refuse the late one.

    The lock is taken once for each request in a worker or under `apply()`. A plain call
    `task(...)` does not lock. `map`, `starmap` and `chunks` are refused: see `map`.

    Example:
        ```python
        @app.task(base=RedlockTask, bind=True, lock_key="account:{account_id}", lock_ttl=30)
        def settle(self, account_id, amount=0):
            ledger.write(account_id, amount, fencing_token=self.request.fencing_token)
        ```
    """

    abstract = True
    redlock_plan: LockPlan | None = None
    #: Whether the plan has been made; without one, a task does not lock.
    redlock_planned = False
    #: The class of a task that knows nothing of locks: its attributes are no options of ours.
    redlock_dedupe_only = False

    @classmethod
    def bind(cls, app: Any) -> Any:
        """Bind the class to an app; unusable lock options are reported here."""
        bound = super().bind(app)
        plan_lock(cls, app)
        return bound

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        """
        As Celery's; a task whose mode locks at publish takes its lock first.

        Returns:
            The task's result; for a duplicate, by policy, a `DuplicateResult` of the existing task.

        Raises:
            DuplicateTask: by policy, for a duplicate.
            LockKeyError: the arguments make no lock key.
        """
        options.update(producer=producer, link=link, link_error=link_error, shadow=shadow)
        send = super().apply_async
        if not self.redlock_planned:
            # Celery shows a lazy task to other threads before the first has bound it.
            plan_lock(type(self), self.app)
        if self.redlock_plan is None:
            return send(args, kwargs, task_id=task_id, **options)
        return publish(self, send, args, kwargs, task_id, options)

    def map(self, it: Any) -> Any:
        """
        As Celery's, for a task that takes no lock; `starmap` and `chunks` likewise.

        Raises:
            ConfigurationError: the task takes a lock, which its items would run without. Send a
                group. A worker refuses such a message, too, however it was sent.
        """
        self._refuse_items("map")
        return super().map(it)

    def starmap(self, it: Any) -> Any:
        """As Celery's, for a task that takes no lock; errors as `map`."""
        self._refuse_items("starmap")
        return super().starmap(it)

    def chunks(self, it: Any, n: int) -> Any:
        """As Celery's, for a task that takes no lock; errors as `map`."""
        self._refuse_items("chunks")
        return super().chunks(it, n)

    def _refuse_items(self, call: str) -> None:
        if not self.redlock_planned:
            plan_lock(type(self), self.app)
        refuse_items(self, call)

    def lock_holder(self, *args: Any, **kwargs: Any) -> LockHolder | None:
        """
        Return who has the lock of a call with these arguments, or None.

        A quorum of nodes says so, at one moment: by the time you read it, it may be over.

        Raises:
            QuorumUnavailable: too few nodes answered.
            LockKeyError: the arguments make no lock key.
            ConfigurationError: the task does not lock.
        """
        return lock_holder(self, args, kwargs)

    def release_lock(self, *args: Any, **kwargs: Any) -> bool:
        """
        Take the lock of a call with these arguments away from whoever has it.

        For the owner of the data, when a lock stands in the way. A body that runs under it is told
        that its lease is lost, but may go on for a moment; a message that waits is not withdrawn.

        Returns:
            Whether anybody had it.

        Raises:
            QuorumUnavailable: too few nodes answered.
            LockKeyError: the arguments make no lock key.
            ConfigurationError: the task does not lock.
        """
        return force_release(self, args, kwargs)

    def revoke_queued(self, *args: Any, **kwargs: Any) -> LockHolder | None:
        """
        Revoke the message that waits with the lock of a call with these arguments; free the lock.

        The next call takes the lock and is sent, at once: as a debounce, revoke what waits and send
        anew with a countdown. A body that runs is left alone. The worker that gets the revoked
        message ends it, also one that was not up when it was revoked: the lock nodes remember it
        until `lock_dedupe_window` after the message's lock would have ended.

        Returns:
            Who waited; None where nobody did, or its body has begun.

        Raises:
            LockNotAcquired: too few nodes answered or agreed.
            LockKeyError: the arguments make no lock key.
            ConfigurationError: the task takes no lock when it is sent.
        """
        return revoke_queued(self, args, kwargs)

    @property
    def lease(self) -> Lease | None:
        """The lease under which this task's body runs, or None."""
        return lease_of(self)

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        """
        As Celery's; the loss of the lease does not interrupt it.

        Once the retry is out, no `LeaseLost` is raised in the rest of the body any more: the task
        would fail while its retry runs. Not so with `throw=False`, where the body goes on.
        """
        with ending(self):
            return super().retry(*args, **kwargs)

    def replace(self, sig: Any) -> Any:
        """As Celery's; the loss of the lease does not interrupt it, or the end of the body."""
        with ending(self):
            return super().replace(sig)

    def on_replace(self, sig: Any) -> Any:
        """Send the replacement, as Celery does, and note that it goes on in this task's place."""
        running_lock = running_lock_of(self.request)
        try:
            return super().on_replace(sig)
        except Ignore:
            if running_lock is not None:
                running_lock.continued = True
            raise


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
    options = None if cls.redlock_dedupe_only else resolve_options(cls, settings)
    if options is None and not settings.dedupe:
        cls.redlock_plan = None
        cls.redlock_planned = True
        return
    plan = LockPlan(
        options=options or _unlocked(settings),
        keys=None if options is None else KeyMaker(cls, options.key),
        lost_signal=settings.lost_signal,
        dedupe=settings.dedupe,
    )
    cls.redlock_plan = plan
    if not getattr(cls.__call__, "celery_redlock", False):
        cls.__call__ = _locking_call(cls)
    connect_postrun(plan)
    warn_of_unreadable(cls, app, plan.options)
    cls.redlock_planned = True


def _unlocked(settings: RedlockSettings) -> LockOptions:
    """Return the options of a task that takes no lock, only the mark of its message."""
    return replace(
        default_options(settings),
        mode="while_executing",
        window=None,
        at_least_for=0.0,
        overlap=None,
        starting_deadline=None,
    )


@contextmanager
def ending(task: Any) -> Iterator[None]:
    """Raise no `LeaseLost` in what is left of a task's body, if Celery ends it here."""
    running_lock = running_lock_of(task.request)
    try:
        yield
    except (Retry, Ignore, Reject):
        if running_lock is not None:
            running_lock.body.over = True
        raise


def _is_first_call(request: Any) -> bool:
    """Tell whether this is the call that runs a request, and not one from inside its body."""
    if request is None or request.called_directly:
        return False
    return request.redlock_entered is not ENTERED


def _locking_call(cls: Any) -> Callable[..., Any]:
    own = cls.__mro__[: cls.__mro__.index(Task)]
    inner = cls.__call__ if any("__call__" in vars(node) for node in own) else None

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  # it becomes one
        request = self.request_stack.top
        plan = self.redlock_plan
        if plan is None or not _is_first_call(request):
            refuse_mapped(self)
            return (inner or Task.__call__)(self, *args, **kwargs)
        request.redlock_entered = ENTERED
        request.fencing_token = request.tick = None
        end_before_autoretry(self)
        if inner is not None:
            return run_locked(self, request, plan, partial(inner, self), args, kwargs)
        # As Celery does where it skips `__call__`: a plain call from inside the body then gets a
        # request of its own.
        request._protected = 1
        return run_locked(self, request, plan, self.run, args, kwargs)

    __call__.celery_redlock = True  # type: ignore[attr-defined]  # marks the class as locking
    return __call__
