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
from celery_redlock.tasks.border import (
    AppLike,
    RequestLike,
    TaskLike,
    is_finalizing,
    protect,
    state_of,
)
from celery_redlock.tasks.by_hand import force_release, revoke_queued
from celery_redlock.tasks.config.options import LockPlan
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.declarations import find_mistakes, make_plan
from celery_redlock.tasks.inspection import LockHolder, LockUsage, lock_holder, lock_usage, plan_of
from celery_redlock.tasks.message.duplicate_result import warn_of_unreadable
from celery_redlock.tasks.publish.publish import publish
from celery_redlock.tasks.refusals import (
    refuse_items,
    refuse_mapped,
    refuse_options,
    refuse_unawaited,
    warn_of_errback,
)
from celery_redlock.tasks.rules.ending import Move
from celery_redlock.tasks.run.ended_tasks import connect_ends
from celery_redlock.tasks.run.handover import keep_for_steps
from celery_redlock.tasks.run.run import end_before_autoretry, run_locked
from celery_redlock.tasks.run.running_lock import current_running_lock, running_lock_of

if TYPE_CHECKING:
    from celery.app.task import Context

    from celery_redlock.tasks.message.tick import Tick

    class TaskRequest(Context):  # type: ignore[misc]  # Celery is untyped
        """Celery's request, with the attributes that this package adds."""

        fencing_token: int | None
        tick: Tick | None


class RedlockTask(Task):  # type: ignore[misc]  # Celery is untyped
    """
    A task whose body runs under a quorum lock. It locks only if it has a `lock_*` option.

    Guarantee: no two bodies with the same key run at once, while clocks drift and processes pause
    within the bounds of the deployment. Limit: beyond these bounds two bodies may overlap. Each
    holder of a key has a higher `self.request.fencing_token` than the one before, so a resource
    that checks the token refuses the late writer.

    A task made with `@app.task(base=RedlockTask)` or `@shared_task` also has its app's own class
    (`task_cls`) as a base, so it keeps Django's `delay_on_commit` and Flask's application context.

    A worker acquires the lock once per request; `apply()` does the same. A plain call `task(...)`
    does not lock. Celery makes such a call of a `link_error` task that takes more than the id of
    the failed one. `map`, `starmap` and `chunks` are refused (see `map`), and so are coroutine
    functions (`async def`), which Celery does not await, and task classes with their own
    `Strategy`, such as that of celery-batches.

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
    def bind(cls, app: AppLike) -> Any:
        """
        Bind the task as Celery does, and check its lock options.

        While Celery finalizes the app, an error is raised only once all tasks are registered; it
        then names the mistakes of all tasks and settings.

        Raises:
            ConfigurationError: an option is invalid, or the body would run without the lock.
            LockKeyError: `lock_key` does not fit the task's arguments.
        """
        was_bound = cls.__bound__
        bound = super().bind(app)
        try:
            plan_lock(cls, app)
        except RedlockError:
            if not is_finalizing(app, cls):
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
        Send the task as Celery does; if its mode locks at publish, acquire the lock first.

        Returns:
            The task's result. For a duplicate that is not sent, a `DuplicateResult` of the existing
            task.

        Raises:
            DuplicateTask: the call is a duplicate, and `lock_on_duplicate` is `raise`.
            LockKeyError: the lock key cannot be made from the arguments.
            ConfigurationError: the call has an option of the lock (`lock_...`), which belongs in
                the task's declaration.
        """
        refuse_options(self, "apply_async", options)
        options.update(producer=producer, link=link, link_error=link_error, shadow=shadow)
        send = super().apply_async
        if not self.redlock_planned:
            # Other threads can see a lazy task before the first thread has bound it.
            plan_lock(type(self), self.app)
        if self.redlock_plan is None:
            return send(args, kwargs, task_id=task_id, **options)
        return publish(self, send, args, kwargs, task_id, options)

    def apply(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """Run the task here, under its lock as in a worker; refuse what `apply_async` refuses."""
        refuse_options(self, "apply", options)
        if options.get("headers"):
            options["headers"] = dict(options["headers"])
        return super().apply(args, kwargs, *rest, **options)

    def map(self, it: Any) -> Any:
        """
        Call Celery's `map` for a task that does not lock. `starmap` and `chunks` work alike.

        Raises:
            ConfigurationError: the task locks, but its items would run without the lock. Send a
                group instead. Workers also refuse such a message.
        """
        self._refuse_items("map")
        return super().map(it)

    def starmap(self, it: Any) -> Any:
        """Call Celery's `starmap` for a task that does not lock; errors as `map`."""
        self._refuse_items("starmap")
        return super().starmap(it)

    def chunks(self, it: Any, n: int) -> Any:
        """Call Celery's `chunks` for a task that does not lock; errors as `map`."""
        self._refuse_items("chunks")
        return super().chunks(it, n)

    def _refuse_items(self, call: str) -> None:
        if not self.redlock_planned:
            plan_lock(type(self), self.app)
        refuse_items(self, call)

    def lock_keys(self, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        """
        Return the lock keys of a call with these arguments, without the prefix on the nodes.

        Raises:
            LockKeyError: a lock key cannot be made from the arguments.
            ConfigurationError: the task does not lock.
        """
        keys = plan_of(self).keys.keys_for(args, kwargs, "")
        return tuple(dict.fromkeys(key.text for key in keys))

    def lock_holder(self, *args: Any, **kwargs: Any) -> LockHolder | None:
        """
        Return the holder of the lock of a call with these arguments, or None.

        A quorum of nodes had this holder at one moment; the lock may have changed hands since. A
        running holder comes before a queued one. For a key with a limit, one of its holders is
        returned; if the call also has a key without a limit, only while all slots are taken.

        Raises:
            QuorumUnavailable: fewer nodes than a quorum replied.
            LockKeyError: the lock key cannot be made from the arguments.
            ConfigurationError: the task does not lock.
        """
        return lock_holder(self, args, kwargs)

    def lock_usage(self, *args: Any, **kwargs: Any) -> tuple[LockUsage, ...]:
        """
        Return each key of a call with these arguments, with its holders and its free slots.

        A quorum of nodes had these holders at one moment. Errors as `lock_holder`.
        """
        return lock_usage(self, args, kwargs)

    def release_lock(self, *args: Any, task_id: str | None = None, **kwargs: Any) -> bool:
        """
        Take the lock of a call with these arguments away from its holder.

        This is for people who need to remove a lock that is in the way. A body that holds the lock
        loses its lease, and continues until it is interrupted. A queued message is not revoked. If
        the task itself has an argument `task_id`, pass it by position.

        Args:
            *args: the call's arguments.
            task_id: take it only from the task with this id, if several may hold a key.
            **kwargs: the call's arguments.

        Returns:
            Whether there was a holder.

        Raises:
            AmbiguousCall: several hold a key with a limit, and `task_id` was not given.
            QuorumUnavailable: fewer nodes than a quorum replied.
            LockKeyError: the lock key cannot be made from the arguments.
            ConfigurationError: the task does not lock.
        """
        return force_release(self, args, kwargs, task_id)

    def revoke_queued(
        self, *args: Any, task_id: str | None = None, **kwargs: Any
    ) -> LockHolder | None:
        """
        Revoke the queued message that holds the lock of a call with these arguments.

        This frees the lock, so the next call acquires it and is sent. A running body is not
        affected. A worker ends the revoked message when it receives it, even if it was down when
        you revoked it: the lock nodes keep the revocation until `lock_dedupe_window` after the
        message's lock would have expired. If the task itself has an argument `task_id`, pass it by
        position.

        Args:
            *args: the call's arguments.
            task_id: revoke only the call with this id, if several may hold a key.
            **kwargs: the call's arguments.

        Returns:
            The holder; None if no message was queued, or if its body has begun.

        Raises:
            AmbiguousCall: several queued calls have the keys, and `task_id` was not given. Nothing
                was revoked.
            LockNotAcquired: fewer nodes than a quorum replied or agreed.
            LockKeyError: the lock key cannot be made from the arguments.
            ConfigurationError: the task's mode does not lock at publish.
        """
        return revoke_queued(self, args, kwargs, task_id)

    @property
    def lease(self) -> Lease | None:
        """
        The lease of the running body, or None if it has no lock.

        The body may release it early and then continues without a lock. If the broker redelivers
        the message, the redelivery runs too, because the dedupe marker is a key of the same lease.
        """
        running_lock = current_running_lock()
        if running_lock is None or running_lock.task is not self:
            return None
        return running_lock.body_lease

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        """
        Retry as Celery does; `LeaseLost` does not interrupt this call.

        Once the retry is sent, the rest of the body does not get `LeaseLost` either, which would
        fail the task while its retry runs. With `throw=False` the body continues, and may be
        interrupted.
        """
        with _ends_body(self):
            return super().retry(*args, **kwargs)

    def replace(self, sig: Any) -> Any:
        """Replace as Celery does; `LeaseLost` interrupts neither this nor the rest of the body."""
        with _ends_body(self):
            return super().replace(sig)

    def on_replace(self, sig: Any) -> Any:
        """Send the replacement as Celery does, and record that it continues this task."""
        running_lock = running_lock_of(self.request)
        kept = None if running_lock is None else keep_for_steps(running_lock, sig)
        try:
            return super().on_replace(sig)
        except Ignore:
            if running_lock is not None:
                if kept is not None:
                    running_lock.hand_over(kept)
                running_lock.move(Move.CONTINUE)
            raise


def _add_class_of_app(cls: type[RedlockTask], app: Celery) -> None:
    """
    Add the app's own task class to the bases of a class that `base=` derived without it.

    `RedlockTask` comes last, so that it locks a call as the app's class has changed it. A base that
    already combines the two keeps its order.
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


def plan_lock(cls: Any, app: AppLike) -> None:
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
        connect_ends(plan)
        warn_of_unreadable(cls, app, plan.options)
    cls.redlock_planned = True


def _lock_calls(cls: Any) -> None:
    if not getattr(cls.__call__, "celery_redlock", False):
        cls.__call__ = _locking_call(cls)


@contextmanager
def _ends_body(task: TaskLike) -> Iterator[None]:
    """Raise no `LeaseLost` in the rest of the body if Celery ends it inside this block."""
    running_lock = running_lock_of(task.request)
    try:
        yield
    except (Retry, Ignore, Reject):
        if running_lock is not None:
            running_lock.body.over = True
        raise


def _is_first_call(request: RequestLike) -> bool:
    """Return whether this call runs the request, rather than coming from inside its body."""
    if request is None or request.called_directly:
        return False
    return not state_of(request).entered


def _locking_call(cls: Any) -> Callable[..., Any]:
    own = cls.__mro__[: cls.__mro__.index(Task)]
    inner = cls.__call__ if any("__call__" in vars(node) for node in own) else None

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  # it becomes one
        if not self.redlock_planned:
            plan_lock(type(self), self.app)  # raises the error of `bind` again
        request = self.request_stack.top
        plan = self.redlock_plan
        if plan is None or not _is_first_call(request):
            refuse_mapped(self)
            warn_of_errback(self, args)
            return (inner or Task.__call__)(self, *args, **kwargs)
        state_of(request).entered = True
        request.fencing_token = request.tick = None
        end_before_autoretry(self)
        body = self.run if inner is None else partial(inner, self)
        if inner is None:
            protect(request)
        result = run_locked(self, request, plan, body, args, kwargs)
        return result if plan.keys is None else refuse_unawaited(self, result)

    __call__.celery_redlock = True  # type: ignore[attr-defined]  # marks the class as locking
    return __call__
