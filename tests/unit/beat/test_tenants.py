"""A wrapped scheduler that sends an entry for each tenant: none is lost, none is sent twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.errors import StaleFencingToken
from celery_redlock.tasks.ticks.entry_state import is_superseded
from tests.unit.beat.test_closing import handle_sigterm
from tests.unit.beat.test_failover import due_times
from tests.unit.beat.world import Beat, MakeWorld, World
from tests.unit.tasks.ticks.tenants import (
    SCHEDULERS,
    TENANTS,
    InContextScheduler,
    InHeadersScheduler,
)

PERIOD = 300


class Crash(BaseException):
    """The process ends here."""


@pytest.fixture(params=SCHEDULERS)
def world(request: pytest.FixtureRequest, make_world: MakeWorld) -> World:
    """A world with one entry that is due every five minutes, for each of three tenants."""
    return world_of(make_world, request.param)


def world_of(make_world: MakeWorld, scheduler: type, task: str = "job") -> World:
    return make_world(
        schedule={"job": {"task": task, "schedule": float(PERIOD)}},
        conf={"redlock_beat_scheduler": scheduler},
    )


def fail_at(world: World, number: int, error: Callable[[], BaseException]) -> None:
    """Let a publish fail once: the one with this number, from 1."""
    numbers = iter(range(1, 1000))

    def failure(task: str) -> Any:
        if next(numbers) == number:
            raise error()

    world.publish_fails_with = failure


def assert_each_tenant_has_one_tick(world: World, ticks: int = 1) -> None:
    ids = Counter(message.id for message in world.sent)
    assert set(ids.values()) == {1}
    assert len(ids) == ticks * len(TENANTS)
    assert Counter(due_times(world.sent)).keys() == set(due_times(world.sent))
    parts = Counter(message.tick.part for message in world.sent if message.tick)
    assert set(parts.values()) == {ticks}


def started(world: World) -> Beat:
    """Return a beat that has taken note of its entries, five seconds before the entry is due."""
    beat = world.beat("a")
    world.run(PERIOD - 5.5)
    world.sent.clear()
    return beat


def test_each_tenant_has_a_tick_of_its_own(world: World) -> None:
    started(world)
    world.run(2 * PERIOD)
    assert_each_tenant_has_one_tick(world, ticks=2)


def test_a_tick_with_all_its_messages_is_one_run(world: World) -> None:
    started(world)
    before = world.recorded()["job"].count
    world.run(PERIOD)
    assert world.recorded()["job"].count == before + 1


def test_a_plain_task_has_a_tick_for_each_tenant_too(make_world: MakeWorld) -> None:
    world = world_of(make_world, InContextScheduler, task="elsewhere.plain")
    started(world)
    world.run(PERIOD)
    assert_each_tenant_has_one_tick(world)


@pytest.mark.parametrize("scheduler", [InContextScheduler, InHeadersScheduler])
def test_each_send_returns_the_result_of_its_message(
    make_world: MakeWorld, scheduler: type
) -> None:
    world = world_of(make_world, scheduler)
    beat = started(world)
    beat.scheduler._inner.__dict__["results"] = results = []
    world.run(PERIOD)
    assert results == [message.id for message in world.sent]


@pytest.mark.parametrize(
    ("error", "end"),
    [(Crash, World.crash), (SystemExit, World.stop)],
    ids=["crashes", "is stopped"],
)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_leader_that_ends_between_two_tenants_leaves_the_others_to_the_next(
    world: World, number: int, error: type[BaseException], end: Callable[[World, Beat], None]
) -> None:
    a = started(world)
    fail_at(world, number, error)
    with pytest.raises(error):
        world.run(PERIOD)
    end(world, a)
    world.publish_fails_with = lambda task: None
    world.beat("b")
    world.run(60)
    assert_each_tenant_has_one_tick(world)


@pytest.mark.parametrize("error", [ValueError, lambda: OperationalError("refused")])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_tenant_whose_message_fails_is_sent_again_and_the_others_are_not(
    world: World, number: int, error: Any
) -> None:
    started(world)
    fail_at(world, number, error)
    world.run(60)
    assert_each_tenant_has_one_tick(world)


def test_a_broker_that_is_down_is_waited_for_once_in_a_pass(world: World) -> None:
    started(world)
    tried: list[float] = []

    def refuse(task: str) -> None:
        tried.append(world.now)
        raise OperationalError("refused")

    world.publish_fails_with = refuse
    world.run(10)
    assert len(tried) == len(set(tried)) > 1


def test_a_send_of_a_leader_that_lost_its_lease_returns_a_result(world: World) -> None:
    beat = started(world)
    inner = beat.scheduler._inner
    inner.redlock_lease.revoke()
    for advance in (True, False):
        with world._watched(), world._as(beat):
            result = inner.apply_async(inner.schedule["job"], advance=advance)
        assert result.id
    assert world.sent == []


def test_a_send_of_a_tick_that_was_sent_before_returns_a_result(world: World) -> None:
    beat = started(world)
    inner = beat.scheduler._inner
    entry = inner.schedule["job"]
    world.run(6)
    with world._watched(), world._as(beat):
        assert inner.apply_async(entry, advance=False).id
    assert len(world.sent) == len(TENANTS)


def test_a_tick_that_no_tenant_wants_counts_as_run(make_world: MakeWorld) -> None:
    world = world_of(make_world, type("Nobody", (InContextScheduler,), {"tenants": []}))
    started(world)
    before = world.recorded()["job"].count
    world.run(PERIOD)
    assert world.recorded()["job"].count == before + 1


def test_a_message_that_a_superseded_leader_sent_of_a_tick_that_another_finished_is_not_late(
    make_world: MakeWorld,
) -> None:
    world = world_of(make_world, InContextScheduler)
    a = started(world)
    fail_at(world, 2, Crash)
    with pytest.raises(Crash):
        world.run(PERIOD)
    world.crash(a)
    world.publish_fails_with = lambda task: None
    world.beat("b")
    world.run(60)
    recorded = world.register()["job"]
    assert [is_superseded(message.tick, recorded) for message in world.sent] == [False] * 3


def test_a_leader_that_learns_of_a_newer_one_between_two_tenants_sends_nothing_more(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(make_world, InContextScheduler)
    started(world)
    write = ScheduleState.write

    def superseded(self: ScheduleState, **options: Any) -> None:
        if len(world.sent) == 1:
            world.beats.clear()  # it makes no pass after this one
            raise StaleFencingToken("there is a newer leader")
        write(self, **options)

    monkeypatch.setattr(ScheduleState, "write", superseded)
    world.run(6)
    assert len(world.sent) == 1


def test_a_stop_signal_between_two_tenants(make_world: MakeWorld) -> None:
    class Signalled(InContextScheduler):
        signalled: Any = None

        def note(self, result: Any) -> None:
            super().note(result)
            if Signalled.signalled is not None:
                beat, Signalled.signalled = Signalled.signalled, None
                handle_sigterm(beat)

    world = world_of(make_world, Signalled)
    Signalled.signalled = a = started(world)
    with pytest.raises(SystemExit):
        world.run(PERIOD)
    world.stop(a)
    world.beat("b")
    world.run(60)
    assert_each_tenant_has_one_tick(world)
