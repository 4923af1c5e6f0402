"""Which scheduler can be wrapped, and what is said about one that cannot."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, Scheduler

from celery_redlock import ConfigurationError
from celery_redlock.beat import RedlockScheduler
from celery_redlock.beat.inner_scheduler import wrapped_class


class Heir(RedlockScheduler):
    """A scheduler of somebody's own."""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Scheduler, Scheduler),
        ("celery.beat:PersistentScheduler", PersistentScheduler),
        ("celery.beat.PersistentScheduler", PersistentScheduler),
    ],
)
def test_a_scheduler_is_named_by_class_or_path(given: Any, expected: type) -> None:
    assert wrapped_class(given, RedlockScheduler) is expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere:Scheduler", "cannot be loaded (ModuleNotFoundError"),
        ("celery.beat:Nobody", "cannot be loaded (AttributeError"),
        ("nonsense", "cannot be loaded (ModuleNotFoundError"),
        ("celery.beat:Service", "is not a subclass of celery.beat.Scheduler"),
        (dict, "is not a subclass of celery.beat.Scheduler"),
        ("redlock", "would wrap itself"),
        (RedlockScheduler, "would wrap itself"),
        (Heir, "would wrap itself"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_with_the_mend(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        wrapped_class(given, RedlockScheduler)
    assert said in caught.value.message
    assert "Set redlock_beat_scheduler to" in caught.value.message


class Final(Scheduler):  # type: ignore[misc]  # Celery is untyped
    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("this class is final")


@pytest.mark.parametrize("given", ["redlock", Final])
def test_it_is_refused_before_the_beat_starts(given: Any) -> None:
    app = Celery("wrapped", broker="memory://", set_as_current=False)
    app.conf.update(redlock_nodes=["memory://wrapped"], redlock_beat_scheduler=given)
    for lazy in (False, True):
        with pytest.raises(ConfigurationError):
            RedlockScheduler(app, lazy=lazy)
