"""A window (`until_expired`) is as long as it is, whatever the clocks of its hosts show."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from celery.exceptions import Reject

from celery_redlock.core import PendingReservation, waiting
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.tasks.message.envelope import HEADER
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.transport.memory import MemoryTransport
from tests.support.skew import clock_off_by
from tests.support.tasks import Bench
from tests.support.unique import KEY, declare, free, left, role
from tests.support.waiting import TIMEOUT
from tests.unit.tasks.jobs import raising, redelivered, retry_once

WINDOW = 200.0
#: A busy machine is slow, and one that is wrong by this is wrong.
ABOUT = 15.0
HOUR = 3600.0

skews = pytest.mark.parametrize("skew", [-HOUR, -WINDOW / 2, 0.0, WINDOW / 2, HOUR])


def windowed(bench: Bench, body: Any = None, **options: Any) -> Any:
    return declare(bench, body, lock_mode="until_expired", lock_window=WINDOW, **options)


def wait_in_queue(bench: Bench, seconds: float) -> None:
    """Let a reservation grow as old as if its message had waited."""
    bench.node.state.keys[KEY].expires_at -= round(seconds * 1000)


def assert_kept_for(bench: Bench, seconds: float) -> None:
    assert role(bench) is Role.FINISHED
    assert seconds - ABOUT < left(bench) <= seconds + 1


def on_another_clock(request: dict[str, Any], skew: float) -> dict[str, Any]:
    """Return a message as a host would have sent it whose clock is so far ahead."""
    header = dict(request[HEADER])
    header["window_until"] += skew
    if "lock" in header:
        header["lock"] = {**header["lock"], "expires_at": header["lock"]["expires_at"] + skew}
    return {**request, HEADER: header}


@skews
@pytest.mark.parametrize("waited", [0.0, 120.0])
def test_a_key_is_kept_for_its_window_whatever_the_publishers_clock_shows(
    bench: Bench, skew: float, waited: float
) -> None:
    with clock_off_by(skew, bench):
        request = bench.send(windowed(bench))
    wait_in_queue(bench, waited)
    bench.run(request)
    assert_kept_for(bench, WINDOW - waited)


@skews
def test_a_key_is_kept_for_its_window_whatever_the_workers_clock_shows(
    bench: Bench, skew: float
) -> None:
    request = bench.send(windowed(bench))
    with clock_off_by(skew, bench):
        bench.run(request)
    assert_kept_for(bench, WINDOW)


@skews
def test_a_lock_that_ends_with_its_messages_expiry_does_not_shorten_the_window(
    bench: Bench, skew: float
) -> None:
    with clock_off_by(skew, bench):
        request = bench.send(windowed(bench), expires=100.0)
    assert left(bench) < 102
    bench.run(request)
    assert_kept_for(bench, WINDOW)


@skews
def test_a_retry_on_another_host_goes_on_with_the_window(bench: Bench, skew: float) -> None:
    request = bench.send(windowed(bench, retry_once))
    wait_in_queue(bench, 120.0)
    with clock_off_by(skew, bench):
        bench.run(request)
        again = bench.receive()
    bench.run(again)
    assert_kept_for(bench, WINDOW - 120.0)


@skews
def test_a_retry_that_overtakes_its_lock_goes_on_with_the_window(
    bench: Bench, client: Any, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """It is received while the body that sent it holds the lock, and waits for it."""
    # It is given the lock without a wake-up, so it finds that at its next look.
    monkeypatch.setattr(waiting, "_LISTENING_PAUSE", 0.05)
    looked = threading.Event()
    look = client.inspect
    overtaking: list[threading.Thread] = []

    def noted(places: Any) -> Any:
        try:
            return look(places)
        finally:
            looked.set()

    def body(self: Any) -> None:
        if self.request.retries:
            return
        self.retry(countdown=0, throw=False)
        again = on_another_clock(bench.receive(), skew)
        client.inspect = noted
        overtaking.append(threading.Thread(target=bench.run, args=[again]))
        overtaking[0].start()
        assert looked.wait(TIMEOUT)

    bench.run(bench.send(windowed(bench, body, lock_wait=TIMEOUT)))
    overtaking[0].join()
    assert_kept_for(bench, WINDOW)


@skews
def test_a_message_that_goes_back_to_the_broker_leaves_its_lock_for_the_rest_of_its_window(
    bench: Bench, skew: float
) -> None:
    body = raising(Reject("later", requeue=True))
    request = bench.send(windowed(bench, body, acks_late=True))
    wait_in_queue(bench, 120.0)
    with clock_off_by(skew, bench):
        bench.run(request)
    assert role(bench) is Role.QUEUED
    assert WINDOW - 120.0 - ABOUT < left(bench) <= WINDOW - 119.0


@skews
def test_a_message_that_brought_no_lock_begins_its_window_when_it_is_run(
    bench: Bench, skew: float
) -> None:
    request = bench.send(windowed(bench))
    del request[HEADER]["lock"]
    free(bench)
    bench.run(on_another_clock(request, skew))
    assert_kept_for(bench, WINDOW)


@skews
def test_a_worker_that_is_faster_than_the_publisher_counts_the_whole_window(
    bench: Bench, client: Any, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """The message is there before the lock was lengthened beyond `PUBLISH_GRACE`."""
    late: list[PendingReservation] = []
    confirm, sleep = client.confirm, MemoryTransport.sleep
    client.confirm = late.append
    request = bench.send(windowed(bench))
    assert left(bench) <= 10

    def lengthened(transport: MemoryTransport, seconds: float) -> None:
        if late:
            confirm(late.pop())
        sleep(transport, seconds)

    monkeypatch.setattr(MemoryTransport, "sleep", lengthened)
    bench.run(on_another_clock(request, skew))
    assert_kept_for(bench, WINDOW)


def test_a_lock_that_was_never_lengthened_does_not_shorten_the_window(
    bench: Bench, client: Any
) -> None:
    client.confirm = lambda reserved: None
    request = bench.send(windowed(bench))
    bench.run(request)
    assert_kept_for(bench, WINDOW)


def test_the_last_seconds_of_a_window_are_no_reason_to_begin_another(bench: Bench) -> None:
    request = bench.send(windowed(bench))
    wait_in_queue(bench, WINDOW - 5)
    bench.run(on_another_clock(request, 5 - WINDOW))
    assert 0 < left(bench) <= 5


def test_after_a_lost_worker_the_window_ends_when_it_would_have(bench: Bench) -> None:
    request = bench.send(windowed(bench))
    free(bench)
    bench.run(redelivered(on_another_clock(request, -120.0)))
    assert_kept_for(bench, WINDOW - 120.0)


@pytest.mark.parametrize("skew", [WINDOW / 2, HOUR, 365 * 24 * HOUR])
def test_after_a_lost_worker_no_clock_lengthens_a_window(bench: Bench, skew: float) -> None:
    request = bench.send(windowed(bench))
    free(bench)
    bench.run(on_another_clock(request, skew))
    assert_kept_for(bench, WINDOW)


def test_where_the_nodes_do_not_tell_the_clocks_are_compared(bench: Bench, client: Any) -> None:
    request = bench.send(windowed(bench))
    client.inspect = raising(QuorumUnavailable("no quorum", KEY, {}))
    bench.run(on_another_clock(request, -120.0))
    assert_kept_for(bench, WINDOW - 120.0)
