"""When an entry that could not be sent is tried again."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.beat.unsent import RetryQueue
from celery_redlock.transport.memory import VirtualTime


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def unsent(time: VirtualTime) -> RetryQueue:
    return RetryQueue(2.0, time.now)


def entry(name: str = "e") -> Any:
    return SimpleNamespace(name=name)


def test_without_any_there_is_nothing_to_wake_for(unsent: RetryQueue) -> None:
    assert unsent.ready() is None
    assert unsent.delay() == math.inf


def test_one_that_is_not_to_blame_is_tried_at_once_the_first_time(unsent: RetryQueue) -> None:
    one = entry()
    unsent.add(one, at_once=True)
    assert unsent.ready() is one
    unsent.add(one, at_once=True)
    assert unsent.ready() is None
    assert unsent.delay() == 2.0


def test_one_that_fails_again_and_again_waits_twice_as_long(
    unsent: RetryQueue, time: VirtualTime
) -> None:
    delays = []
    for _ in range(5):
        unsent.add(entry(), at_once=False)
        delays.append(unsent.delay())
        time.sleep(unsent.delay())
    assert delays == [2.0, 4.0, 8.0, 16.0, 32.0]


def test_one_that_was_sent_begins_anew(unsent: RetryQueue) -> None:
    unsent.add(entry(), at_once=False)
    unsent.discard("e")
    assert unsent.delay() == math.inf
    unsent.add(entry(), at_once=False)
    assert unsent.delay() == 2.0


def test_one_that_waits_does_not_hold_up_another(unsent: RetryQueue) -> None:
    unsent.add(entry("slow"), at_once=False)
    quick = entry("quick")
    unsent.add(quick, at_once=True)
    assert unsent.ready() is quick


def test_those_that_have_left_the_schedule_are_named(unsent: RetryQueue) -> None:
    for name in "abc":
        unsent.add(entry(name), at_once=True)
    assert unsent.keep_only(["b", "other"]) == ["a", "c"]
    assert unsent.ready().name == "b"
