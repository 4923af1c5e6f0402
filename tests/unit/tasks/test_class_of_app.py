"""A task with `base=RedlockTask` stays one of its app's own class."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from celery import Task, _state, shared_task
from celery.contrib.django.task import DjangoTask
from django.db import transaction
from flask import Flask, current_app, has_app_context

from celery_redlock import RedlockTask
from celery_redlock.errors import ConfigurationError
from tests.support.django_site import set_up, use_databases
from tests.support.tasks import Bench

web = Flask("shop")


class FlaskTask(Task):
    """As in Flask's documentation."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with web.app_context():
            return self.run(*args, **kwargs)


class OfTenant(Task):
    """Changes each call before it is sent."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return super().apply_async(args, {**(kwargs or {}), "tenant": "acme"}, **options)


class Locked(RedlockTask):
    abstract = True
    lock_key = "k"


class LockedFirst(RedlockTask, FlaskTask):
    abstract = True


class FlaskFirst(FlaskTask, RedlockTask):
    abstract = True


BASES = [RedlockTask, Locked, LockedFirst, FlaskFirst]


def of_class(task_cls: Any, **conf: Any) -> Bench:
    bench = Bench(**conf)
    bench.app.task_cls = task_cls
    return bench


@pytest.mark.parametrize("base", BASES)
def test_the_body_has_the_context_of_flask_and_its_lock(base: Any) -> None:
    bench = of_class(FlaskTask)
    task = bench.task(lambda: [current_app.name, bench.is_held("k")], base=base, lock_key="k")
    assert bench.call(task).value == ["shop", True]


@pytest.mark.parametrize("base", [RedlockTask, Locked])
def test_a_message_waits_for_its_lock_outside_of_the_context_of_flask(base: Any) -> None:
    bench = of_class(FlaskTask)
    contexts: list[bool] = []

    def decide(task: Any, error: Any) -> str:
        contexts.append(has_app_context())
        return "skip"

    task = bench.task(lambda: None, base=base, lock_key="k", lock_on_conflict=decide, lock_wait=0)
    with bench.elsewhere.lock("k"):
        bench.call(task)
    assert contexts == [False]


@pytest.mark.parametrize("base", [RedlockTask, Locked])
def test_a_task_of_django_is_sent_when_the_transaction_commits(base: Any, tmp_path: Path) -> None:
    set_up()
    name = str(tmp_path / "db")
    use_databases({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": name}})
    bench = of_class("celery.contrib.django.task:DjangoTask")
    task = bench.task(lambda: None, base=base, lock_key="k", lock_mode="until_executed")
    with transaction.atomic():
        task.delay_on_commit()
        assert (bench.queue_length, bench.is_held("k")) == (0, False)
    assert (bench.queue_length, bench.is_held("k:queued") or bench.is_held("k")) == (1, True)


@pytest.mark.parametrize("base", [RedlockTask, Locked])
def test_a_call_is_locked_as_the_class_of_the_app_changes_it(base: Any) -> None:
    bench = of_class(OfTenant)
    task = bench.task(
        lambda tenant: tenant, base=base, lock_key="{tenant}", lock_mode="until_executed"
    )
    request = bench.send(task)
    assert bench.is_held("acme")
    assert bench.run(request).value == "acme"


def test_a_shared_task_is_of_the_class_of_each_app(monkeypatch: pytest.MonkeyPatch) -> None:
    # Apps of other tests do not get the task.
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))

    @shared_task(base=RedlockTask, name="shared", lock_key="k")
    def body() -> None: ...

    plain, django = Bench(), of_class(DjangoTask)
    assert isinstance(django.app.tasks["shared"], DjangoTask)
    assert not isinstance(plain.app.tasks["shared"], DjangoTask)
    assert all(isinstance(bench.app.tasks["shared"], RedlockTask) for bench in (plain, django))


def test_an_attribute_of_the_apps_class_is_one_of_the_task() -> None:
    bench = Bench()
    bench.app.Task.resultrepr_maxsize = 7
    assert bench.task(lambda: None, lock_key="k").resultrepr_maxsize == 7


def test_an_attribute_of_a_base_precedes_that_of_the_apps_class() -> None:
    class Own(Locked):
        abstract = True
        resultrepr_maxsize = 3

    bench = Bench()
    bench.app.Task.resultrepr_maxsize = 7
    assert bench.task(lambda: None, base=Own).resultrepr_maxsize == 3


def test_a_class_of_the_app_that_locks_is_kept_as_well() -> None:
    bench = of_class(Locked)
    tasks = [
        bench.task(lambda: bench.is_held("k"), name=str(base), base=base)
        for base in (None, RedlockTask, Locked)
    ]
    assert [bench.call(task).value for task in tasks] == [True] * 3


@pytest.mark.parametrize("base", BASES)
def test_a_task_of_the_apps_class_can_be_pickled(
    base: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = of_class(FlaskTask)
    task = bench.task(lambda: None, base=base, lock_key="k")
    task.delay()
    monkeypatch.setattr(_state._tls, "current_app", bench.app)
    assert pickle.loads(pickle.dumps(task)) is bench.app.tasks["job"]


def test_a_pattern_keeps_the_class_of_the_app() -> None:
    bench = of_class(FlaskTask, redlock_tasks={"job": {"lock_key": "k"}})
    task = bench.task(lambda: [current_app.name, bench.is_held("k")], base=None)
    bench.app.finalize()
    assert bench.call(task).value == ["shop", True]


def test_a_base_that_cannot_be_combined_with_the_apps_class_is_refused() -> None:
    class First(Task):
        abstract = True

    class Second(Task):
        abstract = True

    class OfApp(First, Second):
        abstract = True

    class Base(RedlockTask, Second, First):
        abstract = True

    bench = of_class(OfApp)
    with pytest.raises(ConfigurationError, match="cannot be combined"):
        bench.task(lambda: None, base=Base, lazy=False)
