"""SIGTERM for a beat inside of a worker, for which Celery's own handler only raises."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery import signals
from celery.beat import Scheduler, Service

from tests.unit.beat.test_closing import is_held
from tests.unit.beat.world import World


@pytest.fixture(autouse=True)
def handled() -> Iterator[list[int]]:
    """Have a handler of SIGTERM as Celery sets one in such a process; return what it got."""
    got: list[int] = []

    def handle(number: int, _frame: Any) -> None:
        got.append(number)
        raise SystemExit(-number)

    before = signal.signal(signal.SIGTERM, handle)
    yield got
    signal.signal(signal.SIGTERM, before)


def begin(scheduler: Any) -> None:
    """What Celery's service does when it starts inside of a worker."""
    service = Service(scheduler.app)
    service.scheduler = scheduler
    signals.beat_embedded_init.send(sender=service)


def stop() -> None:
    """What Celery's worker does when it stops."""
    signal.raise_signal(signal.SIGTERM)


def test_a_leader_has_handed_over_before_anything_is_raised(world: World) -> None:
    a = world.beat("a")
    world.run(3)
    held_when_raised: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: held_when_raised.append(is_held(world)))
    begin(a.scheduler)
    with pytest.raises(SystemExit):
        stop()
    assert held_when_raised == [False]


def test_the_handler_that_was_there_ends_the_process(world: World, handled: list[int]) -> None:
    begin(world.beat("a").scheduler)
    with pytest.raises(SystemExit) as raised:
        stop()
    assert (handled, raised.value.code) == ([signal.SIGTERM], -signal.SIGTERM)


def test_the_process_ends_where_no_handler_was_there(world: World) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    begin(world.beat("a").scheduler)
    with pytest.raises(SystemExit):
        stop()


def test_another_scheduler_is_left_alone(world: World) -> None:
    before = signal.getsignal(signal.SIGTERM)
    begin(Scheduler(world.app(), lazy=True))
    assert signal.getsignal(signal.SIGTERM) is before
