"""
Refusals of calls and declarations that would run a task's body without its lock.

Celery runs `map`, `starmap` and `chunks` as tasks of its own, which call the task as a function for
each item: an item has no request in which it could acquire its lock or be requeued. A coroutine
function returns before its body has run, so the lock would be released at once. A class with a
`Strategy` of its own, such as that of celery-batches, calls bodies as functions as well. Of a
`link_error` task that Celery calls as a function, the worker only warns.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import AsyncGeneratorType, CoroutineType
from typing import Any

from celery import Task, current_task
from celery.app.task import Context

from celery_redlock._log import event_logger
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.border import TaskLike

logger = event_logger(__name__)

#: Celery's tasks that call another one for each item; `chunks` sends the second.
MAPPING = {"celery.map": "map", "celery.starmap": "starmap or chunks"}
#: A call that returns one of these has not run the body.
UNSTARTED = (CoroutineType, AsyncGeneratorType)
ADVICE = (
    "make the body an ordinary function that calls asyncio.run(), so that its lock is held until "
    "the coroutine has ended"
)


def refuse_options(task: TaskLike, call: str, options: Mapping[str, Any]) -> None:
    """
    Refuse options of one call that Celery would ignore, and headers that are no mapping.

    Raises:
        ConfigurationError: an option of the lock is given to a call, or headers are no mapping.
    """
    headers = options.get("headers")
    try:
        dict(headers or ())
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{call}(headers=...) of task {task.name} takes a mapping of names to values, not "
            f"{type(headers).__name__}."
        ) from None
    given = [name for name in options if name.startswith("lock_")]
    if given:
        raise ConfigurationError(
            f"{call}() of task {task.name} takes no {', '.join(given)}: a lock's options belong to "
            "the task, so that its publishers and workers agree on them. Give them to @app.task or "
            "redlock_tasks; to lock single calls in another way, make the key from an argument, or "
            "declare a second task with the same body."
        )


def refuse_items(task: TaskLike, call: str) -> None:
    """
    Refuse a call that would run a task for each item without its lock.

    Raises:
        ConfigurationError: the task locks.
    """
    plan = task.redlock_plan
    if plan is None or plan.keys is None:
        return
    item = "item" if call == MAPPING["celery.map"] else "*item"
    raise ConfigurationError(
        f"Task {task.name} takes a lock, and {call} would call its body without the lock, once for "
        "each item of one message. Send one message per item, each with its own lock: "
        f"group({task.name}.s({item}) for item in items). For chunks of work under one lock, write "
        "a task that takes a list of items."
    )


def refuse_mapped(task: TaskLike) -> None:
    """Refuse Celery's plain call of the task for one item; raises as `refuse_items`."""
    caller = current_task.name if current_task else None
    if caller in MAPPING:
        refuse_items(task, MAPPING[caller])


def warn_of_errback(task: TaskLike, args: tuple[Any, ...]) -> None:
    """
    Log that Celery calls a task that locks as a function, as the `link_error` of a failed one.

    A refusal would keep it from running at all, and in some versions of Celery the failed task from
    being stored as failed.
    """
    plan = task.redlock_plan
    if plan is None or plan.keys is None or not args or not isinstance(args[0], Context):
        return
    logger.warning(
        "errback-runs-without-lock",
        "Task %(task)s is the link_error of %(failed)s[%(failed_id)s] and runs without its lock: "
        "it takes more than one argument, so Celery calls it as a function in the process of the "
        "failed task. Let it take only the id of that task; Celery then sends it as a message.",
        task=task.name,
        failed=args[0].get("task"),
        failed_id=args[0].id,
    )


def refuse_coroutine(task: TaskLike) -> None:
    """
    Refuse a task whose body is a coroutine function or a generator.

    Limit: a function that only returns a coroutine is found when it runs (`refuse_unawaited`).

    Raises:
        ConfigurationError: the body is one of these.
    """
    if inspect.iscoroutinefunction(task.run) or inspect.isasyncgenfunction(task.run):
        raise ConfigurationError(
            f"task {task.name!r}: its body is a coroutine function (async def). Celery does not "
            f"await it, so its lock would be released before it has run; {ADVICE}."
        )
    if inspect.isgeneratorfunction(task.run):
        raise ConfigurationError(
            f"task {task.name!r}: its body is a generator function (yield). Celery does not "
            "iterate over it, so its lock would be released before it has run; collect what it "
            "yields in a list, and return that."
        )


def has_own_strategy(cls: Any) -> bool:
    """Return whether a worker gives the messages of a task class to other code than Celery's."""
    ways = ("Strategy", "start_strategy")
    return any(getattr(cls, way) != getattr(Task, way) for way in ways)


def refuse_strategy(cls: Any) -> None:
    """
    Refuse a task class that decides itself how its messages run.

    Limit: a class that in the end leaves all messages to Celery's own strategy is refused as well.

    Raises:
        ConfigurationError: the class is one of these.
    """
    if has_own_strategy(cls):
        raise ConfigurationError(
            f"task {cls.name!r}: its class has its own Strategy, such as that of celery-batches. A "
            "worker then calls its body as a plain function, without a request in which it could "
            "acquire its lock. Let the body acquire a lock itself, with Redlock.lock(key), and "
            "give the task no lock option."
        )


def refuse_unawaited(task: TaskLike, result: Any) -> Any:
    """
    Return the result of a body that has run under its lock.

    Other awaitable results, such as a lazy query or a future, are results of a body that has run.

    Raises:
        ConfigurationError: the result is a coroutine or an async generator, so the body has not
            run.
    """
    if not isinstance(result, UNSTARTED):
        return result
    if isinstance(result, CoroutineType):
        result.close()
    raise ConfigurationError(
        f"Task {task.name} returned a {type(result).__name__}, which Celery does not await, so "
        f"its body has not run under its lock; {ADVICE}."
    )
