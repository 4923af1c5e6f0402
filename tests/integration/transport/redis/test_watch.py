"""The masters of groups are watched whatever a Sentinel does."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest

from celery_redlock.transport import parse_node
from celery_redlock.transport.base import Durations
from celery_redlock.transport.redis import masters
from celery_redlock.transport.redis.masters import MasterWatch
from tests.support.forking import end_of, in_child
from tests.support.leaks import descriptors
from tests.support.nodes import CALM
from tests.support.sentinels import FakeSentinel, fake_sentinels, url_of
from tests.support.waiting import TIMEOUT, wait_until


@pytest.fixture
def sentinels() -> Iterator[list[FakeSentinel]]:
    with fake_sentinels() as made:
        yield made


def watch_of(*urls: str, node_timeout: float = CALM) -> MasterWatch:
    """Return what watches the masters of some groups."""
    durations = Durations(node_timeout=node_timeout, max_ttl=30.0, takeover=30.0)
    return MasterWatch([parse_node(url) for url in urls], durations)


def test_a_watch_that_is_used_while_it_ends_pauses_between_two_readings(
    sentinels: list[FakeSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masters, "_PAUSE", 4 * TIMEOUT)
    watch = watch_of(url_of(sentinels))
    watch.use()
    pipe = watch._pipe
    assert pipe is not None
    with watch._lock:  # before its thread has noticed the end
        watch.close()
        watch.use()
    wait_until(lambda: not select.select([pipe.fd], [], [], 0)[0])
    watch.close()
    wait_until(lambda: watch._pipe is None)


def test_a_watch_that_is_used_while_its_thread_ends_begins_again(
    sentinels: list[FakeSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watch_of(url_of(sentinels))
    watch.use()
    using = threading.Thread(target=watch.use)

    def close() -> None:
        monkeypatch.undo()
        using.start()
        using.join(0.2)  # it has to wait for this thread

    monkeypatch.setattr(watch._sentinels, "close", close)
    watch.close()
    wait_until(lambda: using.ident)
    using.join()
    wait_until(lambda: watch._pipe is not None)
    watch.close()


def test_a_forked_child_closes_its_copies_of_the_connections_and_no_more(
    sentinels: list[FakeSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masters, "_PAUSE", 0.05)
    watch = watch_of(url_of(sentinels))
    watch.use()
    wait_until(lambda: all(one.connections for one in sentinels))
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
