"""The release of a slot wakes one for each free slot, less those that are on their way."""

from __future__ import annotations

import pytest

from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.votes import Refused
from celery_redlock.protocol.wait_queue import COMES_WITHIN_US
from tests.support.commands import acquire, release
from tests.support.nodes import PREFIX, Nodes
from tests.support.waiting import wait_until

LIMIT = 3
KEY = Key.of(PREFIX, "key", LIMIT)
LONG = 60_000


def ask(nodes: Nodes, *names: str) -> None:
    """Let these wait on the first node, the first one for longest."""
    for since, name in enumerate(names, 1):
        command = acquire((KEY,), name, LONG, 0, 0, "", Waiter(name, since, LONG))
        assert isinstance(nodes.run(0, command), Refused)


def end(nodes: Nodes, number: int) -> None:
    """Release a slot on the first node."""
    nodes.run(0, release((KEY.at(number),), f"holder {number}", 7))


def woken(nodes: Nodes) -> list[str]:
    return [name for _, name in nodes.woken(0)]


def fill(nodes: Nodes) -> None:
    """Give all slots of the first node to holders."""
    for number in range(LIMIT):
        nodes.put(0, KEY.places[number], f"holder {number}")


@pytest.fixture
def full(one_node: Nodes) -> Nodes:
    """Nodes of which the first has given all slots to holders."""
    fill(one_node)
    assert woken(one_node) == []
    return one_node


def test_one_more_is_woken_in_case_the_first_is_gone(full: Nodes) -> None:
    ask(full, "w1", "w2", "w3")
    end(full, 0)
    assert woken(full) == ["w1", "w2"]


def test_while_others_are_on_their_way_only_the_rest_are_woken(full: Nodes) -> None:
    def woken_at_once() -> list[str]:
        """Return who was woken; nobody if the node took so long that the first counts as gone."""
        full.flush(0)
        fill(full)
        ask(full, "w1", "w2", "w3", "w4", "w5")
        began = full.now_us(0)
        for number in range(LIMIT):
            end(full, number)
        took = full.now_us(0) - began
        names = woken(full)
        return names if took < COMES_WITHIN_US else []

    assert wait_until(woken_at_once) == ["w1", "w2", "w3", "w4"]


def test_one_that_is_on_its_way_is_remembered(full: Nodes) -> None:
    ask(full, "w1")
    end(full, 0)
    end(full, 1)
    assert full.waiting(0, KEY.stored) == ["w1"]


def test_slots_that_were_free_before_count_as_well(full: Nodes) -> None:
    ask(full, "w1", "w2", "w3", "w4")
    full.forget(0, KEY.places[0])
    end(full, 1)
    assert woken(full) == ["w1", "w2", "w3"]


def test_those_that_have_not_come_are_woken_again(full: Nodes) -> None:
    ask(full, "w1", "w2")
    end(full, 0)
    seen = woken(full)

    def is_woken_again() -> bool:
        full.put(0, KEY.places[0], "holder 0")
        end(full, 0)
        seen.extend(woken(full))
        return seen.count("w1") > 1

    wait_until(is_woken_again)
