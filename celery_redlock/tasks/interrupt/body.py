"""
The stretch of a task in which its lease matters: the body.

`LeaseLost` is raised into a running body from outside, by means that cannot aim: a signal handler
or an asynchronous exception strikes wherever the interpreter happens to be. A `Body` decides when
they may strike, and takes back what struck too late, so that neither the release nor Celery's
tracer ever sees it.

A body calls Celery (`self.retry`, `apply_async`, a result's `get`) and this package (another lock).
An exception from outside does harm there: during the publish of a retry, Celery takes it for a
failure to send and rejects the message, and a connection that is left in the middle of a command is
broken for its next user. So `LeaseLost` strikes only where nothing but application code runs.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock.errors import LeaseLost

#: Packages that are not interrupted. `logging` swallows what is raised in a handler.
SPARED = frozenset({"celery", "kombu", "logging"})
#: Our subpackages that run in a body, without `fencing`, which does the application's work.
SPARED_OF_OURS = frozenset(
    {"_greenlets", "_log", "beat", "core", "protocol", "schedules", "tasks", "transport"}
)
PACKAGE = "celery_redlock"

#: Functions, by module and name, that do nothing in a body but call the application's code.
PASS_ON = frozenset(
    {
        ("celery.app.autoretry", "run"),
        ("celery.app.base", "wrapper"),  # checks the arguments with Pydantic
        ("celery.app.task", "__call__"),
        ("celery.local", "__call__"),
        ("celery_redlock.tasks.task", "__call__"),
        ("celery_redlock.tasks.run.run", "run"),
    }
)


class InjectedLeaseLost(LeaseLost):
    """
    A `LeaseLost` raised into a body from outside; it knows that body.

    An asynchronous exception is a class that the interpreter instantiates without arguments, so
    each loss gets a class of its own. Outside this process it is a plain `LeaseLost`.
    """

    body: Body
    loss: LeaseLost

    def __init__(self) -> None:
        super().__init__(*self.loss.args)
        self.body.landed = True

    def __reduce__(self) -> tuple[Any, ...]:
        return LeaseLost, self.loss.args

    def plain(self) -> LeaseLost:
        """Return the same error as a plain `LeaseLost`."""
        error = LeaseLost(*self.loss.args).with_traceback(self.__traceback__)
        error.__cause__, error.__context__ = self.__cause__, self.__context__
        error.__suppress_context__ = self.__suppress_context__
        return error

    @classmethod
    def into(cls, body: Body, loss: LeaseLost) -> type[InjectedLeaseLost]:
        """Return the class to raise in `body` for `loss`."""
        # Result backends store the name and the module of an exception's class.
        names = {"__module__": LeaseLost.__module__, "__qualname__": LeaseLost.__qualname__}
        return type(LeaseLost.__name__, (cls,), {**names, "body": body, "loss": loss})


class Body:
    """
    One run of a task body, and at most one `LeaseLost` raised into it.

    Attributes:
        pid: the process that runs it; a forked child neither owns nor leaves it.
        thread: the thread or greenlet that runs it.
        frame: the frame of the call, while the interpreter is inside the body.
        running: the interpreter is inside the body.
        over: Celery has ended it, by its retry or its replacement; nothing is raised any more.
        finished: the body has unwound; nothing is raised any more.
        due: what to raise in it, as soon as that is possible.
        raised: the `LeaseLost` was thrown.
        landed: it has become an exception inside the body.
        lock: serialises throwing into the body and leaving it, from different threads.
    """

    __slots__ = (
        "due",
        "finished",
        "frame",
        "landed",
        "lock",
        "over",
        "pid",
        "raised",
        "running",
        "thread",
    )

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.frame: FrameType | None = None
        self.running = self.over = self.finished = self.raised = self.landed = False
        self.due: type[InjectedLeaseLost] | None = None
        self.lock: Any = native_lock()

    def may_be_interrupted(self, frame: FrameType | None) -> bool:
        """
        Return whether `LeaseLost` may strike now, while the body is at this frame.

        It may not while Celery or this package runs inside the body, but waits until they are done.
        That includes the whole of a task that the body runs eagerly.
        """
        if not self.running or self.over or self.raised or self.due is None:
            return False
        return is_application_code(frame, self.frame)

    def run(
        self,
        call: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        cancel: Callable[[], None],
    ) -> Any:
        """Run the body; `cancel` takes back what was thrown at this thread and has not landed."""
        result: Any = None
        error: BaseException | None = None
        try:
            self.frame = sys._getframe()
            self.running = True
            result = call(*args, **kwargs)
        except BaseException as exc:
            error = exc
        while True:
            # The interpreter may raise at any call, also at the one below. A function for this
            # would not do: its entry would lie outside the try.
            try:
                self.finish(cancel)
                break
            except InjectedLeaseLost as late:
                late.body.landed = late.body.raised = False
        if error is None:
            return result
        if isinstance(error, InjectedLeaseLost):
            error = error.plain()
        try:
            raise error
        finally:
            error = None  # the traceback refers to this frame

    def defer(self, recall: Callable[[], None]) -> None:
        """Take back what was thrown and has not landed; it is thrown again where it may strike."""
        with self.lock:
            recall()
            if not self.landed:
                self.raised = False

    def finish(self, cancel: Callable[[], None]) -> None:
        """End the body: from here on nothing is raised into it. Idempotent."""
        if self.finished or os.getpid() != self.pid:
            return
        with self.lock:
            self.running = False
            cancel()
            self.frame = None
            self.finished = True


def _put_back(unraisable: sys.UnraisableHookArgs, hook: Callable[..., Any]) -> None:
    if isinstance(unraisable.exc_value, InjectedLeaseLost):
        unraisable.exc_value.body.landed = unraisable.exc_value.body.raised = False
    else:
        hook(unraisable)


def watch_unraisable() -> None:
    """
    Notice a `LeaseLost` that struck inside a finalizer.

    The interpreter prints and drops such an exception, so the body never sees it; it is thrown
    again.
    """
    hook = sys.unraisablehook
    if getattr(hook, "celery_redlock", False):
        return

    def put_back(unraisable: sys.UnraisableHookArgs) -> None:
        _put_back(unraisable, hook)

    put_back.celery_redlock = True  # type: ignore[attr-defined]  # marks it as installed
    sys.unraisablehook = put_back


def is_application_code(frame: FrameType | None, body: FrameType | None) -> bool:
    """
    Return whether only application code runs between a body's own frame and this one.

    Args:
        frame: the innermost frame of the thread or greenlet that runs the body.
        body: the frame that has called the body; None while none has.
    """
    innermost = frame
    while frame is not None and frame is not body:
        module = frame.f_globals.get("__name__") or ""
        passes_on = frame is not innermost and (module, frame.f_code.co_name) in PASS_ON
        if _is_spared(module) and not passes_on:
            return False
        frame = frame.f_back
    return frame is not None and frame is not innermost


def _is_spared(module: str) -> bool:
    package, _, rest = module.partition(".")
    if package == PACKAGE:
        return rest.partition(".")[0] in SPARED_OF_OURS
    return package in SPARED
