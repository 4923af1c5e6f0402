"""The masters of groups are watched whatever a Sentinel does."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from celery_redlock._greenlets.threads import start_native_thread
from celery_redlock.protocol.mastership import MAX_AGE
from celery_redlock.transport import clock, parse_node
from celery_redlock.transport.base import Durations
from celery_redlock.transport.redis import masters
from celery_redlock.transport.redis.masters import MasterWatch
from celery_redlock.transport.redis.sentinel import Report, SentinelGroup, ask_sentinels
from tests.support.forking import end_of, in_child
from tests.support.leaks import descriptors
from tests.support.nodes import CALM
from tests.support.sentinels import LOOPBACK, FakeSentinel, fake_sentinels, named, url_of
from tests.support.waiting import TIMEOUT, wait_until


@pytest.fixture
def sentinels() -> Iterator[list[FakeSentinel]]:
    with fake_sentinels() as made:
        yield made


def watch_of(*urls: str, node_timeout: float = CALM) -> MasterWatch:
    """Return what watches the masters of some groups."""
    durations = Durations(node_timeout=node_timeout, max_ttl=30.0, takeover=30.0)
    return MasterWatch([parse_node(url) for url in urls], durations)


def group_of(watch: MasterWatch) -> SentinelGroup:
    """Return the only group that is watched."""
    (group,) = watch.groups.values()
    return group


#: Instead of the address of the Sentinel that is slow to look up.
SLOW = "slow.example"


@pytest.fixture
def ends_lookup(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let the look-up of a name last until the event."""
    ends, find = threading.Event(), socket.getaddrinfo

    def slow(host: str, *args: Any, **options: Any) -> Any:
        if host != SLOW:
            return find(host, *args, **options)
        ends.wait(TIMEOUT)
        return find(LOOPBACK, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    yield ends
    ends.set()


def slow_url(sentinels: list[FakeSentinel]) -> str:
    """Return the URL of a group, of whose Sentinels the first has the name that is slow."""
    return url_of(sentinels).replace(LOOPBACK, SLOW, 1)


def test_masters_are_named_while_a_sentinel_is_looked_up(
    sentinels: list[FakeSentinel], ends_lookup: threading.Event
) -> None:
    url = slow_url(sentinels)
    watch = watch_of(url)
    assert watch.master_of(parse_node(url)).address == (LOOPBACK, 1)
    assert not ends_lookup.is_set()
    watch.close()


def test_a_connection_that_is_made_after_the_end_of_a_watch_is_closed(
    sentinels: list[FakeSentinel], ends_lookup: threading.Event
) -> None:
    watch = watch_of(slow_url(sentinels))
    watch.use()
    watch.close()
    wait_until(lambda: watch._pipe is None)
    ends_lookup.set()
    wait_until(lambda: sentinels[0].accepted)
    wait_until(lambda: not sentinels[0].connections)


def test_sentinels_are_asked_once_within_a_time_whatever_a_look_up_takes(
    sentinels: list[FakeSentinel], ends_lookup: threading.Event
) -> None:
    slow, *others = ask_sentinels(parse_node(slow_url(sentinels)), 0.5).values()
    assert str(slow) == f"{SLOW}:{sentinels[0].port} has not replied yet"
    assert all(isinstance(one, Report) for one in others)
    assert not ends_lookup.is_set()


def test_masters_are_confirmed_although_a_sentinel_never_ends_its_reply(
    sentinels: list[FakeSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drip(_: object) -> Iterator[bytes]:
        yield b"+"
        while True:
            time.sleep(0.01)
            yield b"a"

    monkeypatch.setattr(masters, "_PAUSE", 0.05)
    sentinels[2].reply = drip
    watch = watch_of(url_of(sentinels), node_timeout=0.3)
    watch.use(TIMEOUT)
    wait_until(lambda: sentinels[2].accepted > 1)
    first = group_of(watch).master
    assert first is not None
    confirmed_at = first.confirmed_at
    wait_until(lambda: first.confirmed_at > confirmed_at)
    watch.close()


def test_a_late_reply_confirms_no_master(
    sentinels: list[FakeSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(sentinel: FakeSentinel, connection: socket.socket) -> list[bytes]:
        if sentinel.accepted > 1:
            return named(epoch=2)
        if sentinel.asked > 1:
            return []
        select.select([connection], [], [], TIMEOUT)  # until it is closed, or asked again
        return named(epoch=1)

    monkeypatch.setattr(masters, "_PAUSE", 0.0)
    for one in sentinels:
        one.reply = partial(late, one)
    watch = watch_of(url_of(sentinels), node_timeout=0.2)
    watch.use()
    master = wait_until(lambda: group_of(watch).master)
    assert master is not None
    assert master.epoch == 2
    watch.close()


def test_nobody_is_named_while_a_sentinel_that_replies_last_knows_of_a_promotion(
    sentinels: list[FakeSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def newer(_: object) -> list[bytes]:
        time.sleep(0.02)  # on the way
        return named(port=2, epoch=1)

    monkeypatch.setattr(masters, "_PAUSE", 0.05)
    watch = watch_of(url_of(sentinels))
    watch.use()
    wait_until(lambda: all(one.asked > 1 for one in sentinels))
    sentinels[2].reply = newer
    group = group_of(watch)
    wait_until(lambda: group.problem)
    assert group.master is not None
    confirmed_at, asked = group.master.confirmed_at, sentinels[2].asked
    wait_until(lambda: sentinels[2].asked > asked + 3)
    assert group.master.confirmed_at == confirmed_at
    watch.close()


def test_a_pause_lasts_whatever_wakes_the_thread(
    sentinels: list[FakeSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masters, "_PAUSE", 4 * TIMEOUT)
    watch = watch_of(url_of(sentinels))
    watch.use()
    wait_until(lambda: all(one.asked for one in sentinels))
    pipe = watch._pipe
    assert pipe is not None
    for _ in range(3):  # the first may come before the pause
        pipe.wake()
        wait_until(lambda: not select.select([pipe.fd], [], [], 0)[0])
    assert [one.asked for one in sentinels] == [1, 1, 1]
    watch.close()
    wait_until(lambda: watch._pipe is None)


def test_a_suspension_ends_a_pause(
    sentinels: list[FakeSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masters, "_PAUSE", 4 * TIMEOUT)
    watch = watch_of(url_of(sentinels))
    watch.use()
    wait_until(lambda: all(one.asked for one in sentinels))
    watch._read_at -= 2 * MAX_AGE
    watch.use()
    wait_until(lambda: all(one.asked > 1 for one in sentinels))
    watch.close()


def test_a_watch_that_is_used_while_its_thread_ends_begins_again(
    sentinels: list[FakeSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watch_of(url_of(sentinels))
    watch.use()
    using = threading.Thread(target=watch.use)

    def close(_: object) -> None:
        monkeypatch.undo()
        using.start()
        using.join(0.2)  # it has to wait for this thread

    monkeypatch.setattr(masters.Sentinels, "close", close)
    watch.close()
    wait_until(lambda: using.ident)
    using.join()
    wait_until(lambda: watch._pipe is not None)
    watch.close()


def test_one_thread_watches_although_the_start_of_another_was_interrupted(
    sentinels: list[FakeSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = threading.Event()

    def start(run: Callable[[], None], name: str) -> None:
        start_native_thread(lambda: run() if begins.wait(TIMEOUT) else None, name)
        raise KeyboardInterrupt

    watch = watch_of(url_of(sentinels))
    with monkeypatch.context() as interrupted:
        interrupted.setattr(masters, "start_native_thread", start)
        with pytest.raises(KeyboardInterrupt):
            watch.use()
    watch.use()
    begins.set()
    wait_until(lambda: [one.name for one in threading.enumerate()].count("redlock-masters") == 1)
    assert watch._pipe is not None
    watch.close()


def test_a_reading_is_as_old_as_its_first_question(sentinels: list[FakeSentinel]) -> None:
    asked: list[float] = []

    def note(_: object) -> list[bytes]:
        asked.append(clock.now())
        return named()

    for one in sentinels:
        one.reply = note
    watch = watch_of(url_of(sentinels))
    watch.use()
    wait_until(lambda: watch._read_at > 0)
    assert watch._read_at <= min(asked)
    watch.close()


def test_a_call_waits_for_connections_that_take_longer_than_a_reading(
    sentinels: list[FakeSentinel], ends_lookup: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masters, "_PAUSE", 0.05)
    monkeypatch.setattr(masters, "_LONGEST", 0.05)
    url = url_of(sentinels).replace(LOOPBACK, SLOW, 2)
    watch, found = watch_of(url, node_timeout=TIMEOUT), []
    call = threading.Thread(target=lambda: found.append(watch.master_of(parse_node(url)).address))
    call.start()
    wait_until(lambda: sentinels[2].asked > 2)
    ends_lookup.set()
    call.join()
    assert found == [(LOOPBACK, 1)]
    watch.close()


def test_a_forked_child_closes_its_copies_of_the_connections_and_no_more(
    sentinels: list[FakeSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masters, "_PAUSE", 0.05)
    watch = watch_of(url_of(sentinels))
    watch.use()
    wait_until(lambda: all(one.asked for one in sentinels))  # the threads that connect have ended
    made = [set(one.connections) for one in sentinels]

    def begin_anew() -> None:
        before = descriptors()
        watch.reset_after_fork()
        assert descriptors() == before - len(sentinels) - 2  # the pipe has two

    assert end_of(in_child(begin_anew)) == 0
    asked = [one.asked for one in sentinels]
    wait_until(lambda: all(one.asked > was for one, was in zip(sentinels, asked, strict=True)))
    assert [one.connections for one in sentinels] == made
    watch.close()
