"""Signals that stop a beat: it closes in order, in a process of its own and inside a worker."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import signals
from celery.beat import Scheduler, Service

from celery_redlock.beat.schedule_state import ScheduleState
from tests.support.signals import STOP_SIGNALS, kept_handlers
from tests.unit.beat.test_closing import is_held
from tests.unit.beat.test_failover import due_times
from tests.unit.beat.world import Beat, World

__all__ = ["kept_handlers"]


@pytest.fixture(autouse=True)
def handled(kept_handlers: None) -> list[int]:
    """Have a handler as Celery sets one inside a worker; return what it got."""
    got: list[int] = []

    def handle(number: int, _frame: Any) -> None:
        got.append(number)
        raise SystemExit(-number)

    for number in STOP_SIGNALS:
        signal.signal(number, handle)
    return got


def begin(scheduler: Any) -> None:
    """What Celery's service does when it starts."""
    service = Service(scheduler.app)
    service.scheduler = scheduler
    signals.beat_init.send(sender=service)


def stop() -> None:
    """What a supervisor does, or Celery's worker when it stops."""
    signal.raise_signal(signal.SIGTERM)


def stop_in_send(world: World, *, times: int = 1, then: Callable[[], None] = lambda: None) -> None:
    """Let signals come while the next tick is published, once."""
    left = [True]

    def interrupt(_task: str) -> None:
        if left:
            left.clear()
            for _ in range(times):
                stop()
            then()

    world.publish_fails_with = interrupt


def leader(world: World) -> Beat:
    beat = world.beat("a")
    world.run(3)
    begin(beat.scheduler)
    return beat


def test_a_leader_has_handed_over_before_anything_is_raised(world: World) -> None:
    held_when_raised: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: held_when_raised.append(is_held(world)))
    leader(world)
    with pytest.raises(SystemExit):
        stop()
    assert held_when_raised == [False]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_handler_that_was_there_ends_the_process(
    world: World, handled: list[int], number: signal.Signals
) -> None:
    begin(world.beat("a").scheduler)
    with pytest.raises(SystemExit) as raised:
        signal.raise_signal(number)
    assert (handled, raised.value.code) == ([number], -number)


def test_the_process_ends_where_no_handler_was_there(world: World) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    begin(world.beat("a").scheduler)
    with pytest.raises(SystemExit):
        stop()


def test_a_signal_that_is_ignored_stays_ignored(world: World) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begin(world.beat("a").scheduler)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_scheduler_is_left_alone(world: World) -> None:
    before = signal.getsignal(signal.SIGTERM)
    begin(Scheduler(world.app(), lazy=True))
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_beat_in_a_thread_of_a_worker_leaves_its_handlers_alone(world: World) -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=begin, args=[world.beat("a").scheduler])
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_tick_is_not_sent_again_whose_send_a_signal_has_met(world: World) -> None:
    leader(world)
    stop_in_send(world)
    with pytest.raises(SystemExit):
        world.run(3)
    world.beats.clear()
    sent = len(world.sent)
    world.beat("b")
    assert len(world.run(3)) == 3
    due = due_times(world.sent)
    assert len(due) == len(set(due)) == sent + 3


def test_a_second_signal_ends_a_send_that_hangs(world: World) -> None:
    after: list[str] = []
    leader(world)
    stop_in_send(world, times=2, then=lambda: after.append("the send goes on"))
    with pytest.raises(SystemExit):
        world.run(3)
    assert after == []
    assert not is_held(world)


def test_a_signal_between_two_sends_ends_the_pass_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    after: list[str] = []

    def write(self: ScheduleState, **_: Any) -> None:
        monkeypatch.undo()
        stop()
        after.append("the pass goes on")

    leader(world)
    monkeypatch.setattr(ScheduleState, "write", write)
    with pytest.raises(SystemExit):
        world.run(3)
    assert after == []
    assert not is_held(world)
