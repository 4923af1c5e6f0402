"""What Celery's service asks of a scheduler: construction, banner, schedule, file."""

from __future__ import annotations

import shelve
import socket
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.apps.beat import Beat
from celery.beat import PersistentScheduler, Service

from celery_redlock import ConfigurationError
from celery_redlock.beat import RedlockScheduler
from tests.unit.beat.test_failover import due_times
from tests.unit.beat.world import MakeWorld, World

NODES = [f"redis://:hunter2@10.255.255.{n}:6379/0" for n in (1, 2, 3)]
PERSISTENT = {"redlock_beat_scheduler": "celery.beat:PersistentScheduler"}


def app_with(**conf: Any) -> Celery:
    app = Celery("shop", broker="redis://:hunter2@10.255.255.9/0", set_as_current=False)
    app.conf.update(redlock_nodes=NODES, **conf)
    return app


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("it has connected")

    monkeypatch.setattr(socket, "socket", refuse)


def test_a_leader_has_the_entries_of_an_ordinary_beat(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    world = make_world(conf={"result_expires": 3600})
    ordinary = PersistentScheduler(world.app(), schedule_filename=str(tmp_path / "schedule"))
    entries = set(ordinary.schedule)
    ordinary.close()
    leader = world.beat("a")
    world.run(2)
    assert set(leader.scheduler.schedule) == entries == {"job", "celery.backend_cleanup"}


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("lazy", [True, False])
def test_making_one_connects_nowhere_and_opens_nothing(
    lazy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = RedlockScheduler(app_with(**PERSISTENT), lazy=lazy, schedule_filename="schedule")
    assert made.info
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_network")
def test_the_banner_shows_nodes_without_passwords_lease_and_wrapped_scheduler() -> None:
    conf = {**PERSISTENT, "beat_schedule_filename": "/var/beat/schedule"}
    app = app_with(**conf, redlock_beat_ttl=12)
    service = Service(app, scheduler_cls="redlock")
    banner = Beat(app=app).startup_info(service)
    assert "hunter2" not in banner
    for part in (
        "redis://10.255.255.1:6379/0, redis://10.255.255.2:6379/0, redis://10.255.255.3:6379/0",
        "schedule -> beat:shop",
        "lease -> 12s, extended within 8s, tried every 2s",
        "wraps -> celery.beat.PersistentScheduler",
        "db -> /var/beat/schedule",
        "scheduler -> celery_redlock.beat.scheduler.RedlockScheduler",
    ):
        assert part in banner


@pytest.mark.parametrize("name", ["redlock", "celery_redlock.beat:RedlockScheduler"])
def test_it_is_found_by_its_alias_and_by_its_path(name: str) -> None:
    service = Service(app_with(), scheduler_cls=name)
    assert isinstance(service.get_scheduler(lazy=True), RedlockScheduler)


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"redlock_beat_ttl": "soon"}, "redlock_beat_ttl='soon' is not a duration"),
        ({"redlock_beat_ttl": 0.1}, "redlock_beat_ttl=0.1 is out of range"),
        ({"redlock_beat_retry": -1}, "redlock_beat_retry=-1 is out of range"),
        ({"redlock_beat_key": ""}, "redlock_beat_key='' is not the name of a lock"),
        ({"redlock_beat_key": "a\ud800"}, "cannot be written as UTF-8"),
        ({"redlock_beat_scheduler": 7}, "redlock_beat_scheduler=7 is not a scheduler"),
        ({"redlock_beat_tll": 7}, "did you mean redlock_beat_ttl?"),
    ],
)
def test_a_setting_that_cannot_be_used_stops_the_beat(conf: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedlockScheduler(app_with(**conf), lazy=True)
    assert said in caught.value.message


def test_an_interval_that_is_no_number_stops_the_beat_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match="beat_max_loop_interval='3' is not a number of"):
        RedlockScheduler(app_with(beat_max_loop_interval="3"))


def test_settings_of_a_django_project_are_read() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.config_from_object(
        {"CELERY_REDLOCK_NODES": NODES, "CELERY_REDLOCK_BEAT_TTL": 12}, namespace="CELERY"
    )
    assert "lease -> 12s" in RedlockScheduler(app, lazy=True).info


def test_beats_with_another_key_share_another_schedule(world: World) -> None:
    a = world.beat("a")
    world.conf["redlock_beat_key"] = "beat:other"
    b = world.beat("b")
    sent = world.run(5)
    assert a.leads
    assert b.leads
    assert {message.beat for message in sent} == {"a", "b"}


def test_the_service_is_never_asked_to_sleep_longer_than_a_retry_period(world: World) -> None:
    world.schedule.clear()
    a = world.beat("a")
    assert a.scheduler.max_interval == 2.0
    world.run(30)
    assert a.longest_delay == 2.0
    assert a.passes < 20


def test_a_shorter_interval_of_the_users_own_stays(world: World) -> None:
    world.schedule.clear()
    a = world.beat("a", max_interval=1)
    world.run(30)
    assert a.longest_delay == 1.0


def test_only_a_leader_shows_a_schedule(world: World) -> None:
    a, b = world.beat("a"), world.beat("b")
    world.run(3)
    assert list(a.scheduler.schedule) == ["job"]
    assert not b.scheduler.schedule
    with pytest.raises(TypeError):
        b.scheduler.add(name="more", task="job", schedule=1.0)


def test_entries_of_add_periodic_task_are_sent(world: World) -> None:
    world.schedule.clear()
    a = world.beat("a")
    a.app.add_periodic_task(1.0, a.app.tasks["other"].s(), name="added")
    sent = world.run(3)
    assert {message.tick.entry for message in sent if message.tick} == {"added"}


def test_a_standby_opens_no_schedule_file(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(conf=PERSISTENT)
    files = {name: tmp_path / name / "schedule" for name in "ab"}
    for name, file in files.items():
        file.parent.mkdir()
        world.beat(name, schedule_filename=str(file))
    world.run(10)
    assert list(files["a"].parent.iterdir())
    assert not list(files["b"].parent.iterdir())


@pytest.fixture
def filed(make_world: MakeWorld, tmp_path: Path) -> World:
    """A world whose beats keep their schedule in one file."""
    return make_world(conf={**PERSISTENT, "beat_schedule_filename": str(tmp_path / "schedule")})


def stored_runs(world: World) -> int:
    with shelve.open(world.conf["beat_schedule_filename"]) as stored:
        runs: int = stored["entries"]["job"].total_run_count
        return runs


def test_a_leader_that_stops_leaves_its_file_closed_and_up_to_date(filed: World) -> None:
    a = filed.beat("a")
    sent = filed.run(10)
    filed.stop(a)
    assert stored_runs(filed) == len(sent)


def test_a_leader_that_lost_its_lease_writes_nothing_to_its_file(filed: World) -> None:
    a = filed.beat("a")
    filed.run(10)
    a.scheduler._inner._store.sync()
    before = stored_runs(filed)
    filed.run(5)
    a.frozen = True
    filed.run(20)
    a.frozen = False
    filed.crash(filed.beat("b"))
    filed.pass_of(a)
    assert not a.leads
    assert stored_runs(filed) == before


def test_a_beat_can_lead_again_with_the_same_file(filed: World) -> None:
    a = filed.beat("a")
    first = filed.run(10)
    a.frozen = True
    filed.run(20)
    a.frozen = False
    second = filed.run(10)
    assert len(first) == 10
    assert len(second) >= 9
    assert len(set(due_times(filed.sent))) == len(filed.sent)


def test_a_file_that_is_behind_repeats_no_tick(filed: World, tmp_path: Path) -> None:
    filed.schedule["job"]["schedule"] = 3600.0
    a = filed.beat("a")
    filed.run(10)
    filed.stop(a)
    b = filed.beat("b", schedule_filename=str(tmp_path / "b"))
    assert len(filed.run(3600)) == 1
    filed.stop(b)
    # Its file knows nothing of the tick at 13:00:00.
    filed.beat("a")
    assert filed.run(600) == []


def test_a_file_goes_before_nodes_that_have_lost_everything(filed: World) -> None:
    filed.schedule["job"]["schedule"] = 3600.0
    a = filed.beat("a")
    filed.run(3590)
    filed.stop(a)
    for node in filed.nodes:
        node.state.lose_data()
        node.state.arm()
    filed.run(20)
    filed.beat("a")
    assert len(filed.run(10)) == 1
