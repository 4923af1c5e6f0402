"""A scheduler that sends an entry several times in a pass: each message is a part of the tick."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery.beat import BeatLazyFunc, Scheduler

from tests.unit.tasks.ticks.simulated import SimulatedBeat, beat, one_message
from tests.unit.tasks.ticks.tenants import (
    SCHEDULERS,
    TENANTS,
    InArgumentsScheduler,
    InContextScheduler,
    InHeadersScheduler,
    LockingTenantTask,
    tenant_context,
)

MINUTES = ["12:01:00", "12:02:00"]


def tenants_beat(scheduler_class: type, entry: dict[str, Any] | None = None) -> SimulatedBeat:
    """Return a beat with one entry, of a task that may take the tenant from the context."""
    made = beat({"task": "tenants", **(entry or {})}, scheduler_class=scheduler_class)
    made.task("tenants", base=LockingTenantTask)
    return made


def parts_by_tenant(scheduler_class: type, tenants: list[str] = TENANTS) -> dict[str, Any]:
    """Return the part that each tenant's message has, of a beat that has these tenants."""
    made = tenants_beat(type("Ordered", (scheduler_class,), {"tenants": tenants}))
    return {
        sent.body[1].get("tenant") or sent.headers["_schema_name"]: sent.tick.part
        for sent in made.run(60)
    }


@pytest.fixture(autouse=True)
def _no_tenant() -> Iterator[None]:
    """A tenant for schedulers that set none."""
    with tenant_context("-"):
        yield


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_each_message_has_a_tick_of_its_own(scheduler: type) -> None:
    sent = tenants_beat(scheduler).run(120)
    ticks = [(f"{one.tick.due_at:%H:%M:%S}", one.tick.part) for one in sent]
    assert len(set(ticks)) == len(ticks) == 2 * len(TENANTS)
    assert sorted({due for due, _ in ticks}) == MINUTES


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_each_tenant_has_the_same_part_in_each_tick(scheduler: type) -> None:
    first, second = (tenants_beat(scheduler).run(120)[at : at + 3] for at in (0, 3))
    assert [one.tick.part for one in first] == [one.tick.part for one in second]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_two_beats_name_the_same_parts(scheduler: type) -> None:
    assert parts_by_tenant(scheduler) == parts_by_tenant(scheduler)


@pytest.mark.parametrize("scheduler", [InHeadersScheduler, InArgumentsScheduler])
def test_what_a_scheduler_gives_a_message_names_its_part_in_any_order(scheduler: type) -> None:
    turned = parts_by_tenant(scheduler, TENANTS[:0:-1])
    assert turned.items() <= parts_by_tenant(scheduler).items()


def test_messages_that_are_alike_to_the_scheduler_are_told_apart_by_their_order() -> None:
    first, *_ = parts_by_tenant(InContextScheduler).values()
    assert first is None
    assert next(iter(parts_by_tenant(InContextScheduler, TENANTS[::-1]).values())) is None


class Traced(Scheduler):  # type: ignore[misc]  # Celery is untyped
    """A tool for tracing adds a header of its own to each message."""

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        entry.options["headers"] = {"sentry-monitor-check-in-id": id(object())}
        super().apply_entry(entry, producer=producer)


class Lazy(Scheduler):  # type: ignore[misc]  # Celery is untyped
    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        entry.kwargs["now"] = BeatLazyFunc(object().__hash__)
        super().apply_entry(entry, producer=producer)


class Unstable(Scheduler):  # type: ignore[misc]  # Celery is untyped
    """An argument has no stable form."""

    class Odd:
        def __reduce__(self) -> Any:
            return str, ("odd",)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        entry.args = [self.Odd()]
        super().apply_entry(entry, producer=producer)


@pytest.mark.parametrize("scheduler", [Traced, Lazy, Unstable])
def test_what_differs_with_each_run_of_a_beat_names_no_part(scheduler: type) -> None:
    made = beat({"options": {"serializer": "pickle"}}, scheduler_class=scheduler)
    assert one_message(made).tick.part is None


def test_what_a_scheduler_writes_into_a_message_stays_out_of_the_entry() -> None:
    made = tenants_beat(InArgumentsScheduler, {"kwargs": {"mine": 1}})
    made.run(120)
    assert made.scheduler.schedule["e"].kwargs == {"mine": 1}
