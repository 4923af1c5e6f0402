"""
`RedlockTask`: a Celery task whose body runs under a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry

from celery_redlock.core import Lease
from celery_redlock.errors import ConfigurationError, RedlockError
from celery_redlock.tasks.config.plan import LockPlan
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.declarations import find_mistakes, make_plan
from celery_redlock.tasks.forced_release import force_release, revoke_queued
from celery_redlock.tasks.inspection import LockHolder, LockUsage, lock_holder, lock_usage
from celery_redlock.tasks.message.duplicate_result import warn_of_unreadable
from celery_redlock.tasks.publish.publish import publish
from celery_redlock.tasks.refusals import (
    refuse_items,
    refuse_mapped,
    refuse_options,
    refuse_unawaited,
)
from celery_redlock.tasks.request_state import state_of
from celery_redlock.tasks.rules.ending import Move
from celery_redlock.tasks.run.autoretry import end_before_autoretry
from celery_redlock.tasks.run.kept_keys import keep_for_steps
from celery_redlock.tasks.run.postrun import connect_postrun
from celery_redlock.tasks.run.run import lease_of, run_locked
from celery_redlock.tasks.run.running_lock import running_lock_of

if TYPE_CHECKING:
    from celery.app.task import Context

    from celery_redlock.tasks.message.tick import Tick

    class TaskRequest(Context):  # type: ignore[misc]  # Celery is untyped
        """Celery's request, with the attributes that this package adds."""

        fencing_token: int | None
        tick: Tick | None


__all__ = ["RedlockTask", "plan_lock"]


class RedlockTask(Task):  # type: ignore[misc]  # Celery is untyped
    """
    A task whose body runs under a quorum lock. It locks only if it has a `lock_*` option.

    Guarantee: no two bodies with one key run at once, while clocks drift and processes pause within
    the bounds of the deployment. Limit: beyond these bounds two bodies may overlap. Each holder of
    a key has a higher `self.request.fencing_token` than the one before, so a resource that checks
    the token refuses the late writer.

    A task that `@app.task(base=RedlockTask)` or `@shared_task` makes also is one of its app's own
    class (`task_cls`): Django's `delay_on_commit` and Flask's application context stay.

    A worker acquires the lock once per request; `apply()` does the same. A plain call `task(...)`
    does not lock. `map`, `starmap` and `chunks` are refused (see `map`), and so are coroutine
    functions (`async def`), which Celery does not await, and classes with a `Strategy` of their
    own, as that of celery-batches.

    Example:
        ```python
        @app.task(base=RedlockTask, bind=True, lock_key="account:{account_id}", lock_ttl=30)
        def settle(self, account_id, amount=0):
            ledger.write(account_id, amount, fencing_token=self.request.fencing_token)
        ```
    """

    abstract = True
    redlock_plan: LockPlan | None = None
    #: Whether `plan_lock` has run; a task without a plan does not lock.
    redlock_planned = False
    #: Whether only `redlock_dedupe` applies; then `lock_*` attributes of the class are not options.
    redlock_dedupe_only = False

    if TYPE_CHECKING:

        @property
        def request(self) -> TaskRequest: ...

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if isinstance(app := vars(cls).get("app"), Celery):
            _add_class_of_app(cls, app)

    @classmethod
    def bind(cls, app: Any) -> Any:
        """
        As Celery's; checks the lock options.

        While the app is finalized, which registers all its tasks, the first error waits until they
        are registered, and names the mistakes of all tasks and settings.

        Raises:
            ConfigurationError: an option is invalid, or the body would run without the lock.
            LockKeyError: `lock_key` does not fit the task's arguments.
        """
        was_bound = cls.__bound__
        bound = super().bind(app)
        try:
            plan_lock(cls, app)
        except RedlockError:
            if not _is_finalizing(cls, app):
                raise
            if was_bound:
                # A worker and a beat need their nodes at once; other programs may be offline.
                mistakes, _ = find_mistakes(app, with_nodes=app.loader.worker_initialized)
                raise mistakes.all_in_one() from None
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
        As Celery's; acquires the lock first if the task's mode locks at publish.

        Returns:
            The task's result. For a duplicate that is not sent, a `DuplicateResult` of the existing
            task.

        Raises:
            DuplicateTask: the call is a duplicate, and `lock_on_conflict` is `raise`.
            LockKeyError: the lock key cannot be made from the arguments.
            ConfigurationError: an option of the lock (`lock_...`) is given to the call, and not to
                the task.
        """
        refuse_options(self, "apply_async", options)
        options.update(producer=producer, link=link, link_error=link_error, shadow=shadow)
        send = super().apply_async
        if not self.redlock_planned:
            # Celery shows a lazy task to other threads before the first one has bound it.
            plan_lock(type(self), self.app)
        if self.redlock_plan is None:
            return send(args, kwargs, task_id=task_id, **options)
        return publish(self, send, args, kwargs, task_id, options)

    def apply(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """As Celery's; takes the lock as a worker does, and refuses what `apply_async` refuses."""
        refuse_options(self, "apply", options)
        if options.get("headers"):
            options["headers"] = dict(options["headers"])
        return super().apply(args, kwargs, *rest, **options)

    def map(self, it: Any) -> Any:
        """
        As Celery's, for a task that does not lock; `starmap` and `chunks` likewise.

        Raises:
            ConfigurationError: the task locks, and its items would run without the lock; send a
                group instead. Workers refuse such a message as well.
        """
        self._refuse_items("map")
        return super().map(it)

    def starmap(self, it: Any) -> Any:
        """As Celery's, for a task that does not lock; raises as `map`."""
        self._refuse_items("starmap")
        return super().starmap(it)

    def chunks(self, it: Any, n: int) -> Any:
        """As Celery's, for a task that does not lock; raises as `map`."""
        self._refuse_items("chunks")
        return super().chunks(it, n)

    def _refuse_items(self, call: str) -> None:
        if not self.redlock_planned:
            plan_lock(type(self), self.app)
        refuse_items(self, call)

    def lock_holder(self, *args: Any, **kwargs: Any) -> LockHolder | None:
        """
        Return the holder of the lock of a call with these arguments, or None.

        A snapshot of a quorum of nodes: the lock may have changed hands since. A running holder
        comes before a queued one. Of a key with a limit, it is one of several; where the call has a
        key without one as well, only while all slots are taken.

        Raises:
            QuorumUnavailable: fewer nodes than a quorum answered.
            LockKeyError: the lock key cannot be made from the arguments.
            ConfigurationError: the task does not lock.
        """
        return lock_holder(self, args, kwargs)

    def lock_usage(self, *args: Any, **kwargs: Any) -> tuple[LockUsage, ...]:
        """
        Return the holders of each key of a call with these arguments, and how many more may be.

        A snapshot as `lock_holder`; errors as there.
        """
        return lock_usage(self, args, kwargs)

    def release_lock(self, *args: Any, task_id: str | None = None, **kwargs: Any) -> bool:
        """
        Take the lock of a call with these arguments away from its holder.

        For the owner of the data, when a lock is in the way. A body that holds the lock loses its
        lease and may run on until it is interrupted; a queued message is not revoked. A body's own
        argument `task_id` is given by its position.

        Args:
            *args: of the call.
            task_id: only from the task with this id, where several may hold a key.
            **kwargs: of the call.

        Returns:
            Whether there was a holder.

        Raises:
            AmbiguousCall: several hold a key with a limit, and `task_id` was not given.
            QuorumUnavailable: fewer nodes than a quorum answered.
            LockKeyError: the lock key cannot be made from the arguments.
            ConfigurationError: the task does not lock.
        """
        return force_release(self, args, kwargs, task_id)

    def revoke_queued(
        self, *args: Any, task_id: str | None = None, **kwargs: Any
    ) -> LockHolder | None:
        """
        Revoke the queued message that holds the lock of a call with these arguments.

        Frees the lock, so the next call acquires it and is sent: to debounce, revoke the queued
        message and send a new one with a countdown. A running body is not affected. A worker that
        receives the revoked message ends it, even if the worker was down at the time: the lock
        nodes keep the revocation until `lock_dedupe_window` after the message's lock would have
        expired. A body's own argument `task_id` is given by its position.

        Args:
            *args: of the call.
            task_id: only the call with this id, where several may hold a key.
            **kwargs: of the call.

        Returns:
            The holder; None if no message was queued, or its body has begun.

        Raises:
            AmbiguousCall: several queued calls have the keys, and `task_id` was not given; none is
                revoked.
            LockNotAcquired: fewer nodes than a quorum answered or agreed.
            LockKeyError: the lock key cannot be made from the arguments.
            ConfigurationError: the task's mode does not lock at publish.
        """
        return revoke_queued(self, args, kwargs, task_id)

    @property
    def lease(self) -> Lease | None:
        """
        The lease of the running body, or None if it has no lock.

        The body may release it early. It then runs on without a lock, and a redelivery of its
        message may run as well: the dedupe marker is a key of the same lease.
        """
        return lease_of(self)

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        """
        As Celery's; `LeaseLost` does not interrupt it.

        Once the retry is sent, `LeaseLost` is not raised in the rest of the body: the task would
        fail while its retry runs. With `throw=False` the body continues and may be interrupted.
        """
        with _ends_body(self):
            return super().retry(*args, **kwargs)

    def replace(self, sig: Any) -> Any:
        """As Celery's; `LeaseLost` does not interrupt it, nor the rest of the body."""
        with _ends_body(self):
            return super().replace(sig)

    def on_replace(self, sig: Any) -> Any:
        """As Celery's; records that a replacement continues this task."""
        running_lock = running_lock_of(self.request)
        kept = None if running_lock is None else keep_for_steps(running_lock, sig)
        try:
            return super().on_replace(sig)
        except Ignore:
            if kept is not None:
                kept.sent()
            if running_lock is not None:
                running_lock.move(Move.CONTINUE)
            raise


def _add_class_of_app(cls: type[RedlockTask], app: Celery) -> None:
    """
    Make a task that `base=` would take away from its app's own class a subclass of both.

    `RedlockTask` comes last, so that what the app's class changes in a call is what is locked. A
    base that already combines the two keeps its order.
    """
    missing = [base for base in app.Task.__mro__ if base not in cls.__mro__]
    if not missing:
        return
    own = [
        base for base in cls.__bases__ if base is not RedlockTask and not issubclass(app.Task, base)
    ]
    try:
        cls.__bases__ = (*own, *missing, RedlockTask)
    except TypeError as error:
        raise ConfigurationError(
            f"task {vars(cls).get('name')!r}: its base class and the task class of its app "
            f"({app.task_cls!r}) cannot be combined ({error}). Name a base= that is a subclass of "
            "both."
        ) from error


def plan_lock(cls: Any, app: Any) -> None:
    """
    Read a task class's lock options, and make the class lock if there are any.

    Celery calls `run` directly unless the class has a `__call__` of its own. Only classes that lock
    get one, so that other tasks cost nothing extra.

    Raises:
        ConfigurationError: an option is invalid, or the body would run without the lock.
        LockKeyError: `lock_key` does not fit the task's arguments.
    """
    if not cls.name:
        return
    try:
        cls.redlock_plan = plan = make_plan(cls, read_settings(app))
    except RedlockError:
        _lock_calls(cls)  # so that no call runs the body without the lock
        raise
    if plan is not None:
        _lock_calls(cls)
        connect_postrun(plan)
        warn_of_unreadable(cls, app, plan.options)
    cls.redlock_planned = True


def _lock_calls(cls: Any) -> None:
    if not getattr(cls.__call__, "celery_redlock", False):
        cls.__call__ = _locking_call(cls)


def _is_finalizing(cls: Any, app: Any) -> bool:
    """Return whether Celery registers all tasks of an app in this call, and binds each twice."""
    return app._finalize_mutex._is_owned() and type(app._tasks.get(cls.name)) is cls


@contextmanager
def _ends_body(task: Any) -> Iterator[None]:
    """Raise no `LeaseLost` in the rest of the body if Celery ends it inside this block."""
    running_lock = running_lock_of(task.request)
    try:
        yield
    except (Retry, Ignore, Reject):
        if running_lock is not None:
            running_lock.body.over = True
        raise


def _is_first_call(request: Any) -> bool:
    """Return whether this call runs the request, rather than coming from inside its body."""
    if request is None or request.called_directly:
        return False
    return not state_of(request).entered


def _locking_call(cls: Any) -> Callable[..., Any]:
    own = cls.__mro__[: cls.__mro__.index(Task)]
    inner = cls.__call__ if any("__call__" in vars(node) for node in own) else None

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  # it becomes one
        if not self.redlock_planned:
            plan_lock(type(self), self.app)  # raises again what was wrong when it was bound
        request = self.request_stack.top
        plan = self.redlock_plan
        if plan is None or not _is_first_call(request):
            refuse_mapped(self)
            return (inner or Task.__call__)(self, *args, **kwargs)
        state_of(request).entered = True
        request.fencing_token = request.tick = None
        end_before_autoretry(self)
        body = self.run if inner is None else partial(inner, self)
        if inner is None:
            # As Celery does where it skips `__call__`: a plain call from inside the body then gets
            # a request of its own.
            request._protected = 1
        result = run_locked(self, request, plan, body, args, kwargs)
        return result if plan.keys is None else refuse_unawaited(self, result)

    __call__.celery_redlock = True  # type: ignore[attr-defined]  # marks the class as locking
    return __call__
