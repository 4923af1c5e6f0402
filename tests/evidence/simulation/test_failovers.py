"""
Simulated groups and Sentinels do what real ones do.
"""

from __future__ import annotations

import pytest

from celery_redlock.protocol.commands import acquire
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.votes import Granted, Quarantined
from evidence.simulation.failovers import KNOWN_WITHIN
from evidence.simulation.plan import Plan
from evidence.simulation.world import World

pytestmark = pytest.mark.full

PLAN = Plan(
    seed=1,
    flavour="inside",
    nodes=((1.0, 0.0),) * 3,
    machines=((1.0, 0.0),),
    replicas=((1.0, 0.0),),
    threads=1,
    keys=1,
    duration=1.0,
    ttl=1.0,
    max_ttl=1.0,
    takeover=7.5,
)

ACQUIRE = acquire((Key.of("", "key"),), "owner", 1000, 1, 8500)


@pytest.fixture
def world() -> World:
    return World(PLAN, traced=False)


def _ask(world: World, *, former: bool = False) -> object:
    group = world.groups[0]
    server = group.other if former else group.master
    return server.state.run(ACQUIRE, server.clock.wall_us())


def test_a_promoted_server_is_quarantined(world: World) -> None:
    assert isinstance(_ask(world), Granted)

    world.promote(0, 5.0)

    assert isinstance(_ask(world), Quarantined)


def test_a_former_master_grants_until_it_hears_of_the_promotion(world: World) -> None:
    world.promote(0, 5.0)
    world.scheduler.run(4.9)

    assert isinstance(_ask(world, former=True), Granted)
    assert not world.groups[0].has_replica


def test_a_former_master_follows_the_new_one_in_the_end(world: World) -> None:
    world.promote(0, 5.0)
    world.scheduler.run(5.1)

    assert world.groups[0].has_replica
    assert world.groups[0].other.read_only


def test_every_sentinel_names_the_new_master_in_time(world: World) -> None:
    world.promote(0, 5.0)
    world.scheduler.run(KNOWN_WITHIN)

    new = world.groups[0].master.address
    assert {sentinel.names("group0") for sentinel in world.sentinels} == {(new, 1)}


def test_a_master_without_a_replica_stays_the_master(world: World) -> None:
    world.promote(0, 5.0)
    new = world.groups[0].master
    world.promote(0, 5.0)

    assert world.groups[0].master is new
