"""Receivers of events about locks: one that keeps them, and one that raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from celery_redlock import observe
from celery_redlock.core.instrumentation import Details

Events = list[Details]

#: Add a receiver; return a function that ends it.
Receive = Callable[[Callable[[Details], object]], Callable[[], None]]


@pytest.fixture
def receive() -> Iterator[Receive]:
    """`observe`, whose receivers end with the test."""
    with ExitStack() as ends:

        def begin(receiver: Callable[[Details], object]) -> Callable[[], None]:
            return ends.callback(observe(receiver))

        yield begin


@pytest.fixture
def events(receive: Receive) -> Events:
    """The events that a receiver has got."""
    seen: Events = []
    receive(seen.append)
    return seen


def of_kind(events: Events, kind: type) -> list[Any]:
    """Return the events of one kind."""
    return [event for event in events if type(event) is kind]


class Interrupt(BaseException):
    """As a signal handler or a time limit of gevent raises it."""


Interrupted = Callable[[type], Callable[[], None]]


@pytest.fixture
def interrupt(receive: Receive) -> Interrupted:
    """Begin to raise `Interrupt` at events of a kind; return a function that ends it."""

    def begin(kind: type) -> Callable[[], None]:
        def receiver(details: Details) -> None:
            if type(details) is kind:
                raise Interrupt

        return receive(receiver)

    return begin
