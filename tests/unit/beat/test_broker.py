"""A broker that cannot be reached, and messages that cannot be sent."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task

from celery_redlock.beat.broker import limited_connection
from tests.unit.beat.test_failover import due_times, told
from tests.unit.beat.world import MakeWorld, World
from tests.unit.schedules.test_due_times import SinceLastRun


def test_while_the_broker_is_away_no_entry_counts_as_run(world: World) -> None:
    world.beat("a")
    world.run(3)
    world.broker_is_down = True
    before = world.recorded()["job"].count
    assert world.run(5) == []
    assert world.recorded()["job"].count == before


def test_the_tick_that_failed_is_sent_once_the_broker_is_back_if_no_later_one_is_due(
    make_world: MakeWorld,
) -> None:
    world = make_world(schedule={"hourly": {"task": "job", "schedule": 3600.0}})
    world.beat("a")
    world.run(3590)
    world.broker_is_down = True
    assert world.run(20) == []
    world.broker_is_down = False
    assert told(world.run(10)) == [("a", "13:00:00")]


def test_ticks_that_were_due_meanwhile_collapse_into_the_last(world: World) -> None:
    world.beat("a")
    world.run(3)
    world.broker_is_down = True
    world.run(6)
    world.broker_is_down = False
    first, second = world.run(3)[:2]
    assert due_times([first])[0] == int(first.at)
    assert due_times([second])[0] == due_times([first])[0] + 1


@pytest.mark.parametrize("found", [1.0, SinceLastRun()], ids=["a tick", "no tick"])
def test_a_publish_is_tried_once_in_a_pass(found: Any, make_world: MakeWorld) -> None:
    asked = set()

    class Asking(Task):  # type: ignore[misc]  # Celery is untyped
        name = "asks"

        def apply_async(self, *args: Any, **options: Any) -> Any:
            asked.add(options["retry"])
            return super().apply_async(*args, **options)

    world = make_world(schedule={"e": {"task": "asks", "schedule": found}})
    beat = world.beat("a")
    beat.app.register_task(Asking())
    assert world.run(60)
    assert asked == {False}


def test_an_outage_is_told_once_and_so_is_its_end(world: World) -> None:
    world.beat("a")
    world.run(3)
    world.broker_is_down = True
    world.run(8)
    assert len(world.logged("Beat cannot connect to the broker: refused")) == 1
    assert len(world.logged("Message Error")) <= 1
    world.broker_is_down = False
    world.run(3)
    assert len(world.logged("Beat is connected to the broker again")) == 1


def test_a_leader_without_a_broker_for_a_lease_lets_another_lead(world: World) -> None:
    a, b = world.beat("a"), world.beat("b")
    world.run(3)
    world.broker_is_down = True
    world.run(12)
    assert a.leads
    world.run(4)
    assert not a.leads
    assert world.logged("could not reach the broker for 1")
    world.broker_is_down = False
    world.run(3)
    assert b.leads


def test_a_beat_that_gave_up_the_lead_holds_back_for_a_while_only(world: World) -> None:
    a = world.beat("a")
    world.run(3)
    world.broker_is_down = True
    world.run(14)
    assert not a.leads
    world.broker_is_down = False
    assert world.run(8)
    assert a.leads


def test_a_message_that_can_never_be_sent_does_not_fill_the_log(make_world: MakeWorld) -> None:
    world = make_world(
        schedule={
            "hourly": {"task": "other", "schedule": 3600.0},
            "job": {"task": "job", "schedule": 60.0},
        }
    )
    world.publish_fails_with = lambda task: TypeError("no JSON") if task == "other" else None
    a = world.beat("a")
    world.run(3600)
    world.log.clear()
    a.passes = 0
    sent = world.run(3600)
    assert {message.task for message in sent} == {"job"}
    assert len(sent) == 60
    assert len(world.logged("Message Error")) < 15
    assert a.passes < 4000


def test_a_message_that_failed_by_chance_is_sent_soon_and_once(make_world: MakeWorld) -> None:
    world = make_world(schedule={"hourly": {"task": "job", "schedule": 3600.0}})
    errors = [TypeError("by chance")]
    world.publish_fails_with = lambda task: errors.pop() if errors else None
    world.beat("a")
    sent = world.run(3700)
    assert told(sent) == [("a", "13:00:00")]
    assert sent[0].at < sent[0].tick.due + 3  # type: ignore[union-attr]


def test_one_entry_that_cannot_be_sent_does_not_hold_up_the_others(make_world: MakeWorld) -> None:
    world = make_world(
        schedule={
            "broken": {"task": "other", "schedule": 1.0},
            "job": {"task": "job", "schedule": 1.0},
        }
    )
    world.publish_fails_with = lambda task: TypeError("no JSON") if task == "other" else None
    world.beat("a")
    assert len(world.run(10)) == 10


def test_an_unsent_entry_that_leaves_the_schedule_is_told_of(world: World) -> None:
    world.publish_fails_with = lambda task: TypeError("no JSON")
    a = world.beat("a")
    world.run(3)
    inner = a.scheduler._inner
    inner.schedule.clear()
    world.run(3)
    assert len(world.logged("Entry 'job' has left the schedule")) == 1


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://h", {"socket_timeout": 1.5, "socket_connect_timeout": 1.5}),
        ("amqp://h", {"read_timeout": 1.5, "write_timeout": 1.5, "confirm_publish": True}),
        ("memory://", {}),
    ],
)
def test_the_broker_gets_a_time_limit_for_each_answer(url: str, options: dict[str, Any]) -> None:
    connection = limited_connection(Celery(broker=url, set_as_current=False), 1.5)
    assert connection.transport_options == options
    assert connection.connect_timeout == 1.5


def test_a_shorter_time_limit_of_the_users_own_stays() -> None:
    app = Celery(broker="redis://h", set_as_current=False)
    app.conf.broker_transport_options = {"socket_timeout": 0.2, "visibility_timeout": 60}
    options = limited_connection(app, 1.5).transport_options
    assert options["socket_timeout"] == 0.2
    assert options["visibility_timeout"] == 60
