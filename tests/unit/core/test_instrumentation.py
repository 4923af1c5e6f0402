"""What receivers get of each lock, on memory nodes and on servers, in threads and event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tenacity import RetryCallState, Retrying

from celery_redlock import AsyncRedlock, LockContended, QuorumUnavailable, Redlock
from celery_redlock.core import instrumentation
from celery_redlock.core.instrumentation import (
    AcquireDetails,
    ExtendDetails,
    LossDetails,
    Outcome,
    QuarantineDetails,
    ReleaseDetails,
    observe,
)
from celery_redlock.core.lease import holding_of
from celery_redlock.transport import parse_node
from celery_redlock.transport.memory import memory_node
from tests.support.observing import Events, Interrupt, Interrupted, Receive, of_kind
from tests.support.waiting import wait_until


@pytest.fixture
def nodes(redlock_memory_nodes: list[str]) -> list[str]:
    return redlock_memory_nodes[:3]


def test_a_quarantined_node_is_reported(nodes: list[str], events: Events) -> None:
    for node in nodes:
        memory_node(parse_node(node)).restart()
    with Redlock(nodes, guard=True) as redlock, pytest.raises(QuorumUnavailable):
        redlock.acquire("k")
    quarantined = of_kind(events, QuarantineDetails)
    assert {details.node for details in quarantined} <= set(nodes)
    assert all(details.remaining > 0 for details in quarantined)
    assert len(quarantined) >= 2
    assert of_kind(events, AcquireDetails)[0].outcome is Outcome.UNAVAILABLE


def test_silent_nodes_are_reported_as_failed(nodes: list[str], events: Events) -> None:
    for node in nodes[:2]:
        memory_node(parse_node(node)).refusing = True
    with Redlock(nodes, guard=False) as redlock, pytest.raises(QuorumUnavailable):
        redlock.acquire("k")
    [details] = of_kind(events, AcquireDetails)
    assert list(details.votes.values()).count("failed") == 2


async def test_an_event_loop_reports_the_same(events: Events) -> None:
    async with AsyncRedlock("memory://observed-loop") as redlock, redlock.lock("k") as lease:
        await lease.extend()
        with pytest.raises(LockContended):
            await asyncio.create_task(redlock.acquire("k", wait=0.1))
    assert [type(event) for event in events] == [
        AcquireDetails,
        ExtendDetails,
        AcquireDetails,
        ReleaseDetails,
    ]
    assert events[2].attempts > 1  # type: ignore[union-attr]


def test_a_receiver_that_raises_is_logged_and_the_others_are_called(
    redlock: Redlock, receive: Receive, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    receive(lambda _: 1 / 0)
    assert redlock.acquire("k").release()
    assert "A receiver of AcquireDetails failed" in caplog.text
    assert [type(event) for event in events] == [AcquireDetails, ReleaseDetails]


async def test_a_lock_of_an_event_loop_whose_report_is_interrupted_is_released(
    nodes: list[str], interrupt: Interrupted
) -> None:
    async with AsyncRedlock(nodes) as redlock:
        end = interrupt(AcquireDetails)
        with pytest.raises(Interrupt):
            await redlock.acquire("k")
        end()
        assert (await redlock.acquire("k")).is_valid


def test_close_releases_all_leases_although_a_report_is_interrupted(
    redlock: Redlock,
    redlock_memory_nodes: list[str],
    interrupt: Interrupted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("celery_redlock.core.lease._BATCH", 1)
    client = Redlock(redlock_memory_nodes)
    leases = [client.acquire(key) for key in ("a", "b", "c")]
    end = interrupt(ReleaseDetails)
    with pytest.raises(Interrupt):
        client.close()
    end()
    assert redlock.acquire([lease.key for lease in leases]).is_valid


def test_an_interrupt_in_the_watchdogs_thread_is_logged(
    redlock: Redlock, interrupt: Interrupted, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    interrupt(LossDetails)
    redlock.watch(redlock.acquire("k"), max_hold=0.001)
    wait_until(lambda: of_kind(events, LossDetails))
    wait_until(lambda: "A receiver of LossDetails failed" in caplog.text)


def test_a_loss_is_reported_after_its_callback(redlock: Redlock, events: Events) -> None:
    reported: list[int] = []
    lease = redlock.acquire("k")
    holding_of(lease).on_lost = lambda: reported.append(len(of_kind(events, LossDetails)))
    lease.mark_lost()
    assert reported == [0]
    assert len(of_kind(events, LossDetails)) == 1


async def _acquire(nodes: list[str], retry: Retrying) -> None:
    with Redlock(nodes) as redlock:
        redlock.acquire("k", wait=5.0, retry=retry)


async def _acquire_in_loop(nodes: list[str], retry: Retrying) -> None:
    async with AsyncRedlock(nodes) as redlock:
        await redlock.acquire("k", wait=5.0, retry=retry)


@pytest.mark.parametrize("acquire", [_acquire, _acquire_in_loop])
async def test_a_receiver_that_comes_during_a_call_gets_how_long_it_waited(
    redlock: Redlock,
    redlock_memory_nodes: list[str],
    receive: Receive,
    acquire: Callable[[list[str], Retrying], Awaitable[None]],
) -> None:
    seen: Events = []

    def observe_and_stop(_: RetryCallState) -> bool:
        receive(seen.append)
        return True

    redlock.acquire("k")
    with pytest.raises(LockContended):
        await acquire(redlock_memory_nodes, Retrying(stop=observe_and_stop))
    assert of_kind(seen, AcquireDetails)[0].waited < 5.0


def test_after_it_was_ended_a_receiver_gets_nothing(redlock: Redlock) -> None:
    seen: Events = []
    first, second = observe(seen.append), observe(seen.append)
    first()
    redlock.acquire("k")
    assert len(seen) == 1
    second()
    second()
    redlock.acquire("other")
    assert len(seen) == 1
    assert instrumentation.receivers == ()
