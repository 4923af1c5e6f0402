"""Which schedulers can stamp ticks, and what is said of those that cannot."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery.beat import Scheduler

from celery_redlock import ConfigurationError
from celery_redlock.tasks.ticks.entry_ticks import EntryTicks
from celery_redlock.tasks.ticks.tick_stamping import TickScheduler, adopt, stamp_stock_beat, stamped
from tests.unit.tasks.ticks.simulated import START, SimulatedBeat, beat, messages_of

TICKS = ["2026-03-10 12:01:00", "2026-03-10 12:02:00"]


class Counting(Scheduler):  # type: ignore[misc]  # Celery is untyped
    """A scheduler that overrides what ours overrides."""

    calls = 0

    def reserve(self, entry: Any) -> Any:
        self.calls += 1
        return super().reserve(entry)

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return super().apply_async(*args, **kwargs)


class Slotted(Scheduler):  # type: ignore[misc]  # Celery is untyped
    __slots__ = ("mine",)


class Meta(type):
    pass


class WithMetaclass(Scheduler, metaclass=Meta):  # type: ignore[misc]  # Celery is untyped
    pass


class Final(Scheduler):  # type: ignore[misc]  # Celery is untyped
    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("this class is final")


class Shadowing(Scheduler):  # type: ignore[misc]  # Celery is untyped
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.apply_async = super().apply_async


@pytest.mark.parametrize("scheduler", [Counting, Slotted, WithMetaclass])
def test_a_scheduler_class_of_any_shape_stamps_ticks(scheduler: type) -> None:
    assert beat(scheduler_class=scheduler).ticks(120) == TICKS


def test_a_schedulers_own_methods_still_run() -> None:
    made = beat(scheduler_class=Counting)
    made.run(120)
    assert made.scheduler.calls == 4


def test_a_scheduler_that_stamps_ticks_is_still_one_of_its_class_by_the_same_name() -> None:
    made = beat(scheduler_class=Counting)
    made.open()
    assert isinstance(made.scheduler, Counting)
    assert repr(type(made.scheduler)) == repr(Counting)


def test_a_class_that_allows_no_subclass_is_refused_with_its_reason() -> None:
    with pytest.raises(ConfigurationError, match=r"Final does not allow a .*this class is final"):
        stamped(Final)


def test_a_class_that_is_no_scheduler_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Bare is not a subclass of celery"):
        stamped(type("Bare", (), {}))


def test_a_method_on_the_instance_is_refused_and_the_scheduler_stays_as_it_was() -> None:
    made = SimulatedBeat(START)
    scheduler = Shadowing(made.app)
    with pytest.raises(ConfigurationError, match="Shadowing sets apply_async on its instance"):
        adopt(scheduler, TickScheduler, EntryTicks(made.app, lambda entry: True))
    assert type(scheduler) is Shadowing


@pytest.mark.parametrize("scheduler_class", [Final, Shadowing])
def test_a_stock_beat_that_cannot_be_stamped_says_so_and_sends_as_ever(
    scheduler_class: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = beat(scheduler_class=scheduler_class, with_ticks=False)
    made.open()
    stamp_stock_beat(made)
    assert [message.header for message in made.run(61)] == [None]
    (line,) = messages_of(caplog, logging.ERROR)
    assert scheduler_class.__name__ in line
