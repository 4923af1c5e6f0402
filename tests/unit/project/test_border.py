"""What this package uses of Celery's objects, they have; one module uses private names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from celery import Celery
from celery.app.task import Context
from celery.worker.request import Request

import celery_redlock
from celery_redlock.tasks.border import AppLike, ReceivedRequest, RequestLike, TaskLike

PACKAGE = Path(celery_redlock.__file__).parent
BORDER = PACKAGE / "tasks/border.py"

#: What this package gives the objects.
OWN = {"fencing_token", "redlock_plan", "redlock_state", "tick"}

APP = Celery("border", broker="memory://", set_as_current=False)


@APP.task(shared=False)
def body() -> None: ...


def names_of(protocol: type) -> set[str]:
    methods = {name for name in vars(protocol) if not name.startswith("_")}
    return (set(protocol.__annotations__) | methods) - OWN


USED = [
    (thing, name)
    for thing, protocol in (
        (APP, AppLike),
        (body, TaskLike),
        (Context(), RequestLike),
        (Request, ReceivedRequest),
    )
    for name in sorted(names_of(protocol))
]


def test_celerys_objects_have_what_is_used_of_them() -> None:
    assert not [name for thing, name in USED if not hasattr(thing, name)]


PRIVATE = re.findall(r"(?:app|task|request|scheduler|schedule)\.(_\w+)", BORDER.read_text())


@pytest.mark.parametrize("name", sorted({*PRIVATE, "_orig_run", "_eta_timer_entry", "_heap"}))
def test_no_other_module_uses_a_private_name_of_celery(name: str) -> None:
    users = [
        path.name
        for folder in ("tasks", "beat", "admin", "cli")
        for path in (PACKAGE / folder).rglob("*.py")
        if path != BORDER and re.search(rf"(?<!self)\.{name}\b|[\"']{name}[\"']", path.read_text())
    ]
    assert users == []
