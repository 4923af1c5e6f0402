"""What of a body's stack is the application's, and what is Celery's or ours."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import celery_redlock
from celery_redlock.tasks.interrupt import body
from celery_redlock.tasks.interrupt.body import is_application_code

RUN = ("celery_redlock.tasks.interrupt.body", "run")
JOB = ("shop.tasks", "settle")


def stack(*functions: tuple[str, str]) -> tuple[Any, Any]:
    """Return the innermost frame of these calls, outermost first, and the body's own."""
    bottom = frame = SimpleNamespace(f_globals={"__name__": "celery.app.trace"}, f_back=None)
    for module, name in (RUN, *functions):
        frame = SimpleNamespace(
            f_globals={"__name__": module}, f_code=SimpleNamespace(co_name=name), f_back=frame
        )
        if (module, name) == RUN:
            bottom = frame
    return frame, bottom


@pytest.mark.parametrize(
    "functions",
    [
        [JOB],
        [JOB, ("redis.client", "get"), ("socket", "recv")],
        [("celery.app.autoretry", "run"), JOB],
        [("celery.app.task", "__call__"), JOB],
        [JOB, ("celery.local", "__call__"), ("celery.app.task", "__call__"), JOB],
        [("celery.app.base", "wrapper"), JOB],
        [JOB, ("celery_redlock.fencing.file", "write")],
        [JOB, ("celeryshop.stock", "count")],
    ],
)
def test_application_code_may_be_interrupted(functions: list[tuple[str, str]]) -> None:
    assert is_application_code(*stack(*functions))


@pytest.mark.parametrize(
    "functions",
    [
        [],
        [("celery.app.autoretry", "run")],
        [("celery.app.task", "__call__")],
        [("celery.app.autoretry", "run"), ("celery_redlock.tasks.task", "retry")],
        [JOB, ("celery.app.task", "retry")],
        [JOB, ("celery.app.base", "send_task"), ("kombu.messaging", "publish"), ("socket", "send")],
        [JOB, ("celery.canvas", "apply_async"), ("shop.json", "encode")],
        [JOB, ("celery.app.task", "apply"), ("celery.app.trace", "trace_task"), JOB],
        [JOB, ("kombu.connection", "drain_events")],
        [JOB, ("celery_redlock.core.redlock", "acquire")],
        [JOB, ("logging", "handle"), ("shop.logs", "emit")],
    ],
)
def test_the_work_of_celery_and_of_this_package_is_spared(functions: list[tuple[str, str]]) -> None:
    assert not is_application_code(*stack(*functions))


def test_code_that_is_not_called_by_the_body_is_spared() -> None:
    frame, _ = stack(JOB)
    _, another = stack(JOB)
    assert not is_application_code(frame, another)
    assert not is_application_code(frame, None)


#: Of Celery 5.5 and later.
NEWER = {("celery.app.base", "wrapper")}


@pytest.mark.parametrize(("module", "name"), sorted(body.PASS_ON - NEWER))
def test_what_passes_on_to_the_application_exists(module: str, name: str) -> None:
    assert f"def {name}(" in inspect.getsource(importlib.import_module(module))


#: Programs of their own, and what those call.
DO_NOT_RUN_IN_BODIES = {"admin", "cli", "testing", "web"}


def test_every_package_either_is_spared_or_does_the_work_of_applications() -> None:
    package = Path(celery_redlock.__file__).parent
    found = {path.parent.name for path in package.glob("*/__init__.py")}
    found.add("_log")  # a module of its own, which all of them call
    assert found == body.SPARED_OF_OURS | DO_NOT_RUN_IN_BODIES | {"fencing"}
