"""Until when a publish-time lock lasts, read from a call as Celery reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from typing import Any

import pytest
from celery import Celery

from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.expiry import SLACK, reservation_end, window_end

NOW = 1_900_000_000.0
QUEUE = LockOptions(mode="until_executed", queue_ttl=100.0)
WINDOW = LockOptions(mode="until_expired", window=30.0, queue_ttl=100.0)


@cache
def task(expires: float | None = None) -> Any:
    app = Celery("due", broker="memory://", set_as_current=False)
    app.conf.timezone = "Europe/Berlin"

    @app.task(name="due", shared=False, expires=expires)
    def due() -> None: ...

    app.finalize()
    return app.tasks["due"]


def lasts(lock: LockOptions = QUEUE, declared: float | None = None, **call: Any) -> float:
    return reservation_end(task(declared), lock, call, NOW, continuation=False) - NOW


def at(seconds: float, tz: Any = UTC) -> datetime:
    return datetime.fromtimestamp(NOW + seconds, tz)


@pytest.mark.parametrize(
    ("call", "seconds"),
    [
        ({}, 100),
        ({"countdown": 50}, 150),
        ({"countdown": -50}, 100),
        ({"countdown": 0, "eta": at(20)}, 120),
        ({"countdown": 50, "eta": at(20)}, 150),
        ({"eta": at(7200)}, 7300),
        ({"eta": at(7200, timezone(timedelta(hours=5)))}, 7300),
        ({"eta": at(7200).isoformat()}, 7300),
        ({"eta": at(7200).replace(tzinfo=None)}, 7300),
        ({"eta": at(-7200)}, 100),
        ({"expires": 10}, 10 + SLACK),
        ({"expires": 10.5}, 10.5 + SLACK),
        ({"expires": 500}, 100 + SLACK),
        ({"expires": -10}, SLACK),
        ({"expires": at(10)}, 10 + SLACK),
        ({"expires": at(10).isoformat()}, 10 + SLACK),
        ({"expires": at(10), "countdown": 50}, 10 + SLACK),
        ({"expires": None}, 100),
    ],
)
def test_a_lock_lasts_from_when_the_task_is_due_until_it_expires(
    call: dict[str, Any], seconds: float
) -> None:
    assert lasts(**call) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", ["soon", object(), b"x", [], float("inf"), float("nan"), 1e300, {"in": 5}]
)
def test_what_celery_will_refuse_is_as_good_as_not_given(value: Any) -> None:
    assert lasts(eta=value) == 100
    assert lasts(countdown=value) == 100
    assert lasts(expires=value) in (100, 100 + SLACK)


def test_expires_of_the_task_counts_unless_the_call_says_otherwise() -> None:
    assert lasts(declared=10) == 10 + SLACK
    assert lasts(declared=10, expires=20) == 20 + SLACK
    assert lasts(declared=10, expires=None) == 100


def test_a_window_counts_from_when_the_task_is_due() -> None:
    assert lasts(WINDOW, countdown=5) == 35
    assert window_end(task(), WINDOW, {"countdown": 5}, NOW) == NOW + 35
    assert window_end(task(), QUEUE, {"countdown": 5}, NOW) is None


def test_a_task_that_is_handed_on_does_not_lose_its_lock_in_the_queue_with_its_window() -> None:
    end = reservation_end(task(), WINDOW, {"countdown": 60}, NOW, continuation=True)
    assert end - NOW == 160
