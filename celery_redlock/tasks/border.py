"""
The border to Celery: its objects as this package sees them, and each private name that it uses.

Celery has no type hints, so uses of its objects are checked against the protocols here, which name
only what Celery's objects have, and what this package sets on its requests. If a new version of
Celery renames a private name, one function changes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import datetime
from heapq import heapify
from typing import Any, Protocol

from celery._state import get_current_task
from celery.app.annotations import resolve_all
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.local import Proxy
from celery.utils.functional import maybe_list


class AppLike(Protocol):
    """A Celery app."""

    Task: Any
    amqp: Any
    annotations: Any
    backend_cls: Any
    conf: Any
    control: Any
    events: Any
    finalized: bool
    loader: Any
    main: str | None
    on_after_finalize: Any
    steps: Mapping[str, set[Any]]
    task_cls: Any
    tasks: MutableMapping[str, Any]
    timezone: Any

    def AsyncResult(self, task_id: str, **options: Any) -> Any:  # noqa: N802  # Celery's name
        """Return the result of a task."""

    def connection_for_read(self, **options: Any) -> Any:
        """Return a connection to the broker from which workers read."""

    def connection_for_write(self, **options: Any) -> Any:
        """Return a connection to the broker to which messages go."""

    def finalize(self, auto: bool = ...) -> None:  # Celery's signature
        """Make the tasks."""

    def now(self) -> datetime:
        """Return the time in the app's zone."""

    def signature(self, *args: Any, **options: Any) -> Any:
        """Return the signature of a call."""


class RequestLike(Protocol):
    """A request in the process of its body: `celery.app.task.Context`."""

    id: str
    called_directly: bool
    chain: list[Any] | None
    chord: Any
    delivery_info: Mapping[str, Any] | None
    expires: Any
    headers: dict[str, Any] | None
    hostname: str
    is_eager: bool
    parent_id: str | None
    properties: Mapping[str, Any] | None
    replaced_task_nesting: int
    retries: int
    stamps: Any
    timelimit: tuple[float | None, float | None] | None

    # Set by this package.
    fencing_token: int | None
    redlock_state: Any
    tick: Any

    def as_execution_options(self) -> dict[str, Any]:
        """Return the options of a message that continues the request."""


class ReceivedRequest(Protocol):
    """A message that a worker has, in its main process: `celery.worker.request.Request`."""

    id: str
    app: AppLike
    content_type: str | None
    delivery_info: Mapping[str, Any]
    eta: datetime | None
    expires: datetime | None
    name: str
    request_dict: dict[str, Any]
    stamps: Mapping[str, Any]
    task: Any

    def acknowledge(self) -> None:
        """Acknowledge the message, unless that has been done."""


# Class attributes are defaults, which are never sent in the headers of a message. `fencing_token`
# and `tick` are for the application; everything else is in one `RequestState`.
Context.fencing_token = None
Context.redlock_state = None
Context.tick = None


@dataclass(slots=True)
class RequestState:
    """
    The course of one request.

    Attributes:
        entered: the call that runs the request has begun; later calls come from inside its body.
        traced: Celery has sent `task_prerun`, so `task_postrun` will follow.
        running_lock: the lock and dedupe marker of the request, until they are released.
        ended: they have been released.
        last_words: logs why the body did not run, after Celery has logged the end of the task.
    """

    entered: bool = False
    traced: bool = False
    running_lock: Any = None
    ended: bool = False
    last_words: Callable[[], object] | None = None


class TaskLike(Protocol):
    """A task of Celery's, of any class."""

    name: str
    Request: Any
    acks_late: bool
    acks_on_failure_or_timeout: bool | None
    app: Any
    backend: Any
    ignore_result: bool
    request: Any
    request_stack: Any
    send_events: bool
    soft_time_limit: float | None
    store_eager_result: bool
    store_errors_even_if_ignored: bool
    time_limit: float | None
    typing: bool

    # Of this package's tasks.
    redlock_plan: Any

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body."""

    def signature_from_request(self, request: Any = ..., **options: Any) -> Any:
        """Return a signature that continues a request."""


def state_of(request: RequestLike) -> RequestState:
    """Return the state of a request. A value that a message's headers have set is replaced."""
    state = getattr(request, "redlock_state", None)
    if not isinstance(state, RequestState):
        state = request.redlock_state = RequestState()
    return state


def app_itself(app: AppLike) -> Any:
    """Return an app; a task that was bound on first use has Celery's proxy of the current app."""
    return app._get_current_object() if isinstance(app, Proxy) else app


def annotations_of(task: TaskLike) -> Iterator[Mapping[str, Any]]:
    """Iterate over the attributes that `task_annotations` gives to a task."""
    annotations: Iterator[Mapping[str, Any]] = resolve_all(task.app.annotations, task)
    return annotations


def app_of(task: TaskLike) -> Any:
    """Return the app of a task, which may be another one in another thread."""
    return task._get_app()  # type: ignore[attr-defined]


def tasks_so_far(app: Any) -> list[Any]:
    """Return the tasks that are known, without finalizing the app."""
    return list(app._tasks.values())


def is_finalizing(app: Any, cls: Any) -> bool:
    """Return whether Celery finalizes the app in this thread, which binds each task twice."""
    return app._finalize_mutex._is_owned() and type(app._tasks.get(cls.name)) is cls


def message_options(task: TaskLike) -> dict[str, Any]:
    """Return the options that a task gives each of its messages."""
    options: dict[str, Any] = task._get_exec_options()  # type: ignore[attr-defined]
    return options


def ignores_result(task: TaskLike, request: RequestLike) -> Any:
    """Return whether the result of a message's task is ignored."""
    # The class of a request has False where the message has no value.
    requested = vars(request).get("ignore_result")
    return task.ignore_result if requested is None else requested


def running_task_name() -> str:
    """Return the name of the task that runs in this thread or greenlet; empty if none does."""
    return getattr(get_current_task(), "name", None) or ""


def trace_anew(task: Any, app: AppLike) -> None:
    """Rebuild the task's tracer if Celery has built one: the old one would skip the lock."""
    if task.__trace__ is not None:
        task.__trace__ = build_tracer(task.name, task, app.loader, app=app)


def run_in_autoretry(task: TaskLike) -> Callable[..., Any] | None:
    """Return the body that Celery's `autoretry_for` calls; None where it calls none."""
    found: Callable[..., Any] | None = vars(task).get("_orig_run")
    return found


def set_run_in_autoretry(task: Any, run: Callable[..., Any]) -> None:
    """Have Celery's `autoretry_for` call another body."""
    task._orig_run = run


def protect(request: Any) -> None:
    """
    Give a plain call of the task from inside its body a request of its own.

    Celery does the same where it skips `__call__`.
    """
    request._protected = 1


def context_of(request: ReceivedRequest) -> Any:
    """Return a message's context, as its body would see it, in the worker's main process."""
    return request._context  # type: ignore[attr-defined]


def is_revoked(request: ReceivedRequest) -> bool:
    """Return whether a message is revoked in this worker, by its id or by a stamp."""
    from celery.worker import state as worker_state

    revoked_stamps = worker_state.revoked_stamps
    return request.id in worker_state.revoked or any(
        stamp in maybe_list(revoked_stamps.get(name, ()))
        for name, stamps in (request.stamps.items() if revoked_stamps else ())
        for stamp in maybe_list(stamps) or ()
    )


def most_processes(consumer: Any) -> int:
    """Return how many processes, threads or greenlets a worker's pool may have at most."""
    pool = consumer.pool
    # gevent counts the greenlets that run, before Celery 5.7; an autoscaler has an upper limit.
    autoscaled = getattr(consumer.controller, "max_concurrency", None)
    return max(pool.num_processes or 0, pool.limit or 0, autoscaled or 0)


def timer_entry(timer: Any, request: ReceivedRequest) -> Any:
    """
    Return the timer's entry that starts a message at its ETA; None if it was cancelled.

    In a pool of greenlets the entry is a greenlet.
    """
    entry = getattr(request, "_eta_timer_entry", None)
    if entry is None:  # Celery before 5.7 does not keep it
        for scheduled in list(timer.schedule._queue):
            call = scheduled.entry
            if call.args and call.args[0] is request:
                entry = scheduled if hasattr(scheduled, "kill") else call
                break
    is_cancelled = entry is None or entry.canceled or getattr(entry, "dead", False)
    return None if is_cancelled else entry


def drop_cancelled(timer: Any) -> None:
    """Drop the cancelled entries of an event loop's timer, which it would keep until their time."""
    queue = timer.schedule._queue
    kept = [scheduled for scheduled in queue if not scheduled.entry.canceled]
    if len(kept) < len(queue) / 2:
        heapify(kept)
        queue[:] = kept


def heap_of(scheduler: Any) -> list[Any] | None:
    """Return a scheduler's heap, its entries in the order of their times; None if it has none."""
    heap: list[Any] | None = getattr(scheduler, "_heap", None)
    return heap


def due_after(scheduler: Any, entry: Any, pause: float) -> float:
    """Return a scheduler's time for an entry that is due after a pause in seconds."""
    when: float = scheduler._when(entry, pause)
    return when
