"""The types of the lock options, and the checks that take their choices from them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_args, get_type_hints

import pytest
from celery import Celery

from celery_redlock import RedlockTask, TaskLockOptions, lock_options
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.option_values import MODES, ModeName
from celery_redlock.tasks.config.options import OPTIONS, PREFIX

HINTS = get_type_hints(TaskLockOptions)


def accepts(name: str, value: Any) -> bool:
    try:
        OPTIONS[name](value)
    except ConfigurationError:
        return False
    return True


def test_the_types_name_every_option_and_no_other() -> None:
    assert set(HINTS) == {PREFIX + name for name in OPTIONS}


def test_the_types_name_every_mode() -> None:
    assert set(get_args(ModeName)) == set(MODES)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_the_check_of_an_option_accepts_a_timedelta_where_its_type_does(name: str) -> None:
    typed = HINTS[PREFIX + name] is Any or timedelta in get_args(HINTS[PREFIX + name])
    assert accepts(name, timedelta(seconds=5)) == typed


@pytest.mark.parametrize("through", ["the decorator", "a pattern"])
def test_options_reach_a_task_through(through: str) -> None:
    options = lock_options(lock_key="k", lock_ttl=7)
    app = Celery("typed", broker="memory://", set_as_current=False)
    app.conf.redlock_nodes = ["memory://typed"]
    app.conf.redlock_tasks = {"*.job": options} if through == "a pattern" else None
    declared = {"base": RedlockTask, **options} if through == "the decorator" else {}

    @app.task(name="typed.job", shared=False, **declared)
    def job() -> None: ...

    app.finalize()
    assert app.tasks["typed.job"].redlock_plan.options.ttl == 7
