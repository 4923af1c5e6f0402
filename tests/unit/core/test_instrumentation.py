"""What receivers get of each lock, on memory nodes and on servers, in threads and event loops."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tenacity import RetryCallState, Retrying

from celery_redlock import AsyncRedlock, LockContended, QuorumUnavailable, Redlock
from celery_redlock.core import instrumentation
from celery_redlock.core.instrumentation import (
    AcquireDetails,
    Details,
    ExtendDetails,
    LossDetails,
    Outcome,
    QuarantineDetails,
    ReleaseDetails,
    observe,
)
from celery_redlock.core.lease import holding_of
from celery_redlock.transport import parse_node
from celery_redlock.transport.memory.transport import memory_node

Events = list[Details]
_names = itertools.count()


def fresh_nodes() -> list[str]:
    name = next(_names)
    return [f"memory://observed-{name}-{node}" for node in range(3)]


@pytest.fixture
def events() -> Iterator[Events]:
    seen: Events = []
    forget = observe(seen.append)
    yield seen
    forget()


@pytest.fixture(params=["memory", "servers"])
def client(request: pytest.FixtureRequest) -> Iterator[Redlock]:
    if request.param == "memory":
        nodes = fresh_nodes()
    else:
        nodes = request.getfixturevalue("redlock_cluster_factory")(3).urls
    with Redlock(nodes, node_timeout=2.0, guard=False) as redlock:
        redlock.acquire("connects", wait=10.0).release()
        yield redlock


def of_kind(events: Events, kind: type) -> list[Any]:
    return [event for event in events if type(event) is kind]


def test_a_quarantined_node_is_reported(events: Events) -> None:
    nodes = fresh_nodes()
    for node in nodes:
        memory_node(parse_node(node)).restart()
    with Redlock(nodes, guard=True) as redlock, pytest.raises(QuorumUnavailable):
        redlock.acquire("k")
    quarantined = of_kind(events, QuarantineDetails)
    assert {details.node for details in quarantined} <= set(nodes)
    assert all(details.remaining > 0 for details in quarantined)
    assert len(quarantined) >= 2
    assert of_kind(events, AcquireDetails)[0].outcome is Outcome.UNAVAILABLE


def test_silent_nodes_are_reported_as_failed(events: Events) -> None:
    nodes = fresh_nodes()
    for node in nodes[:2]:
        memory_node(parse_node(node)).refusing = True
    with Redlock(nodes, guard=False) as redlock, pytest.raises(QuorumUnavailable):
        redlock.acquire("k")
    [details] = of_kind(events, AcquireDetails)
    assert list(details.votes.values()).count("failed") == 2


def test_an_event_loop_reports_the_same(events: Events) -> None:
    async def run() -> None:
        async with (
            AsyncRedlock("memory://observed-loop") as redlock,
            redlock.lock("k") as lease,
        ):
            await lease.extend()
            with pytest.raises(LockContended):
                await asyncio.create_task(redlock.acquire("k", wait=0.1))

    asyncio.run(run())
    assert [type(event) for event in events] == [
        AcquireDetails,
        ExtendDetails,
        AcquireDetails,
        ReleaseDetails,
    ]
    assert events[2].attempts > 1  # type: ignore[union-attr]


def test_a_receiver_that_raises_is_logged_and_the_others_are_called(
    events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(details: Details) -> None:
        raise ZeroDivisionError

    forget = observe(broken)
    try:
        with Redlock("memory://observed-broken") as redlock, caplog.at_level(logging.ERROR):
            assert redlock.acquire("k").release()
    finally:
        forget()
    assert "A receiver of AcquireDetails failed" in caplog.text
    assert [type(event) for event in events] == [AcquireDetails, ReleaseDetails]


class Interrupt(BaseException):
    """As a signal handler or a time limit of gevent raises it."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[type], Callable[[], None]]]:
    """Begin to raise `Interrupt` at events of a kind; return a function that ends it."""
    ends: list[Callable[[], None]] = []

    def begin(kind: type) -> Callable[[], None]:
        def receiver(details: Details) -> None:
            if type(details) is kind:
                raise Interrupt

        ends.append(observe(receiver))
        return ends[-1]

    yield begin
    for end in ends:
        end()


Interrupted = Callable[[type], Callable[[], None]]


def test_a_lock_of_an_event_loop_whose_report_is_interrupted_is_released(
    interrupt: Interrupted,
) -> None:
    async def run() -> None:
        async with AsyncRedlock(fresh_nodes()) as redlock:
            end = interrupt(AcquireDetails)
            with pytest.raises(Interrupt):
                await redlock.acquire("k")
            end()
            assert (await redlock.acquire("k")).is_valid

    asyncio.run(run())


def test_close_releases_all_leases_although_a_report_is_interrupted(
    interrupt: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_redlock.core.lease._BATCH", 1)
    nodes = fresh_nodes()
    with Redlock(nodes) as other:
        client = Redlock(nodes)
        leases = [client.acquire(key) for key in ("a", "b", "c")]
        end = interrupt(ReleaseDetails)
        with pytest.raises(Interrupt):
            client.close()
        end()
        assert other.acquire([lease.key for lease in leases]).is_valid


def test_an_interrupt_in_the_watchdogs_thread_is_logged(
    interrupt: Interrupted, caplog: pytest.LogCaptureFixture
) -> None:
    lost = threading.Event()
    seen: Events = []
    interrupt(LossDetails)
    forget = observe(lambda details: (seen.append(details), lost.set()))
    try:
        with Redlock("memory://observed-watched") as redlock:
            lease = redlock.acquire("k")
            seen.clear()
            lost.clear()
            redlock.watch(lease, max_hold=0.001)
            assert lost.wait(10.0)
    finally:
        forget()
    assert of_kind(seen, LossDetails)
    assert "A receiver of LossDetails failed" in caplog.text


def test_a_loss_is_reported_after_its_callback(events: Events) -> None:
    reported: list[int] = []
    with Redlock("memory://observed-loss") as redlock:
        lease = redlock.acquire("k")
        holding_of(lease).on_lost = lambda: reported.append(len(of_kind(events, LossDetails)))
        lease.mark_lost()
    assert reported == [0]
    assert len(of_kind(events, LossDetails)) == 1


def _acquire(nodes: list[str], retry: Retrying) -> None:
    with Redlock(nodes) as redlock:
        redlock.acquire("k", wait=5.0, retry=retry)


def _acquire_in_loop(nodes: list[str], retry: Retrying) -> None:
    async def run() -> None:
        async with AsyncRedlock(nodes) as redlock:
            await redlock.acquire("k", wait=5.0, retry=retry)

    asyncio.run(run())


@pytest.mark.parametrize("acquire", [_acquire, _acquire_in_loop])
def test_a_receiver_that_comes_during_a_call_gets_how_long_it_waited(
    acquire: Callable[[list[str], Retrying], None],
) -> None:
    seen: Events = []
    ends: list[Callable[[], None]] = []

    def observe_and_stop(_: RetryCallState) -> bool:
        ends.append(observe(seen.append))
        return True

    nodes = fresh_nodes()
    try:
        with Redlock(nodes) as holder:
            holder.acquire("k")
            with pytest.raises(LockContended):
                acquire(nodes, Retrying(stop=observe_and_stop))
    finally:
        for end in ends:
            end()
    assert of_kind(seen, AcquireDetails)[0].waited < 5.0


def test_after_it_was_ended_a_receiver_gets_nothing() -> None:
    seen: Events = []
    first, second = observe(seen.append), observe(seen.append)
    first()
    with Redlock("memory://observed-ended") as redlock:
        redlock.acquire("k")
        assert len(seen) == 1
        second()
        second()
        redlock.acquire("other")
    assert len(seen) == 1
    assert instrumentation.receivers == ()
