"""Messages that wait for a rate begin in the order in which they asked."""

from __future__ import annotations

import pytest

from evidence.simulation.turns import Backlog

pytestmark = pytest.mark.full

SCENES = {
    "all on time": Backlog("10/s", 200, 20.0),
    "some late": Backlog("10/s", 200, 20.0, late=0.1),
    "some gone": Backlog("10/s", 200, 20.0, gone=0.1),
    "some urgent": Backlog("10/s", 200, 20.0, urgent_every=10),
    "a long period": Backlog("50/m", 150, 90.0),
}


def ran(scene: str) -> Backlog:
    """Return a scene that has run."""
    backlog = SCENES[scene]
    if not backlog.messages:
        backlog.run()
    return backlog


@pytest.mark.parametrize("scene", SCENES)
def test_a_backlog_is_served_in_order_while_as_many_arrive(scene: str) -> None:
    backlog = ran(scene)
    waits = sorted(one.begun - one.sent for one in backlog.messages if one.begun is not None)
    due = sorted(backlog.due().values())
    assert waits[int(len(waits) * 0.99)] <= 1.3 * due[int(len(due) * 0.99)]


@pytest.mark.parametrize("scene", SCENES)
def test_the_rate_is_used_while_more_wait(scene: str) -> None:
    backlog = ran(scene)
    could = max(backlog.messages[at].sent + wait for at, wait in backlog.due().items())
    ended = max(one.begun for one in backlog.messages if one.begun is not None)
    assert could / ended >= 0.85


def test_urgent_messages_do_not_wait_for_the_backlog() -> None:
    waits = {0: 0.0, 1: 0.0}
    for one in ran("some urgent").messages:
        assert one.begun is not None
        waits[one.rank] = max(waits[one.rank], one.begun - one.sent)
    assert waits[0] < 0.1 * waits[1]


def test_none_gives_up_whose_turn_is_well_before() -> None:
    backlog = Backlog("10/s", 100, 30.0, late=0.1, give_up_after=20.0)
    backlog.run()
    assert [one.number for one in backlog.messages if one.failed] == []
