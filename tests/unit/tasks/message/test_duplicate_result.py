"""What the sender of a duplicate gets."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redlock import RedlockTask, is_duplicate
from celery_redlock.errors import ConfigurationError, DuplicateTask
from celery_redlock.tasks.config.resolve import resolve_options
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.message import duplicate_result
from celery_redlock.tasks.message.duplicate_result import result_of, warn_of_unreadable
from celery_redlock.tasks.message.owner_label import TaskOwner
from celery_redlock.tasks.rules.facts import Role


@pytest.fixture(autouse=True)
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicate_result, "_warned", set())


def declare(backend: str | None = "cache+memory://", **options: Any) -> Any:
    app = Celery("duplicates", broker="memory://", backend=backend, set_as_current=False)
    app.conf.redlock_nodes = ["memory://duplicates"]
    options = {"lock_key": "k", "lock_mode": "until_executed", **options}

    @app.task(base=RedlockTask, name="job", shared=False, **options)
    def job() -> None: ...

    app.finalize()
    return app.tasks["job"]


def existing_task() -> TaskOwner:
    return TaskOwner(role=Role.RUNNING, task_id="existing", host="worker", pid=1, since=0)


def test_it_reads_the_outcome_of_the_existing_task() -> None:
    task = declare()
    task.backend.store_result("existing", 7, "SUCCESS")
    result = result_of(task, existing_task(), ignored=False)
    assert (result.readable, is_duplicate(result), result.get(timeout=1)) == (True, True, 7)


@pytest.mark.parametrize(
    ("backend", "ignored", "mend"),
    [
        (None, False, "there is no result backend; set result_backend"),
        ("disabled", False, "there is no result backend; set result_backend"),
        ("rpc://", False, "to the process that sent the task and to no other; use another"),
        ("cache+memory://", True, "its result is not stored; remove ignore_result"),
    ],
)
@pytest.mark.parametrize("read", ["get", "wait"])
def test_what_can_never_be_read_is_refused_at_once(
    backend: str | None, ignored: bool, mend: str, read: str
) -> None:
    result = result_of(declare(backend), existing_task(), ignored=ignored)
    assert result.readable is False
    with pytest.raises(ConfigurationError, match=mend):
        getattr(result, read)()


@pytest.fixture
def existing() -> Iterator[Any]:
    """The result of a task of the current app."""
    task = declare()
    task.app.set_current()
    yield result_of(task, existing_task(), ignored=False)
    Celery("other").set_current()


def test_it_survives_pickling_as_what_it_is(existing: Any) -> None:
    result = pickle.loads(pickle.dumps(existing))
    assert (is_duplicate(result), result.id) == (True, "existing")


def test_the_error_keeps_its_result_through_pickling(existing: Any) -> None:
    error = DuplicateTask("no", "existing")
    error.result = existing
    again = pickle.loads(pickle.dumps(error))
    assert (again.task_id, again.result.id) == ("existing", "existing")


def warnings(caplog: pytest.LogCaptureFixture, task: Any) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        options = resolve_options(type(task), read_settings(task.app))
        assert options is not None
        duplicate_result._warned.clear()
        warn_of_unreadable(type(task), task.app, options)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("backend", "options", "mend"),
    [
        (None, {}, "set result_backend"),
        ("rpc://", {}, "use another result_backend"),
        ("cache+memory://", {"ignore_result": True}, "remove ignore_result"),
    ],
)
def test_a_declaration_whose_duplicates_have_unreadable_results_is_warned_of(
    caplog: pytest.LogCaptureFixture, backend: str | None, options: dict[str, Any], mend: str
) -> None:
    (warning,) = warnings(caplog, declare(backend, **options))
    assert warning.startswith("Task job is unique")
    assert mend in warning


@pytest.mark.parametrize(
    "options", [{}, {"lock_on_duplicate": "raise"}, {"lock_on_duplicate": "replace"}]
)
def test_a_declaration_without_that_problem_is_not_warned_of(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    backend = None if options else "cache+memory://"
    assert warnings(caplog, declare(backend, **options)) == []


def test_a_declaration_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    task = declare(None)
    assert len(warnings(caplog, task)) == 1
    options = resolve_options(type(task), read_settings(task.app))
    assert options is not None
    warn_of_unreadable(type(task), task.app, options)
    assert len(caplog.records) == 1
