"""Locks on real Sentinel groups, whose masters are replaced meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_redlock import LockNotAcquired, QuorumUnavailable, Redlock
from celery_redlock.core.node_admin import poll_nodes
from celery_redlock.core.redlock import client_of
from celery_redlock.protocol.mastership import MAX_AGE
from celery_redlock.protocol.votes import Failed, Granted, Quarantined, Vote
from celery_redlock.testing import LocalSentinel
from celery_redlock.transport import RedisTransport
from celery_redlock.transport.redis import masters
from celery_redlock.transport.redis.masters import MasterWatch
from tests.integration.lease.test_greenlets import BODY
from tests.support.forking import end_of, in_child
from tests.support.greenlets import PATCH, run_with_greenlets
from tests.support.sentinels import fake_sentinels, url_of
from tests.support.tls import make_certificate, terminate_tls
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.full

#: Short, so that a quarantine ends within a test; too short for clients with former masters.
MAX_TTL, TAKEOVER = 2.0, 1.0


def votes(redlock: Redlock) -> list[Vote | None]:
    """Return how the nodes vote now."""
    return poll_nodes(client_of(redlock)).votes


def kinds(redlock: Redlock) -> list[type]:
    """Return the kinds of the nodes' votes now."""
    return [type(vote) for vote in votes(redlock)]


def watch_of(redlock: Redlock) -> MasterWatch:
    """Return what watches a client's masters."""
    transport = client_of(redlock).transport
    assert isinstance(transport, RedisTransport)
    watch = transport._nodes.watch
    assert watch is not None
    return watch


def let_time_pass(watch: MasterWatch) -> None:
    """Let the masters be confirmed too long ago."""
    watch._read_at -= 2 * MAX_AGE
    for group in watch.groups.values():
        assert group.master is not None
        group.master.confirmed_at -= 2 * MAX_AGE


@pytest.fixture(autouse=True)
def short_takeovers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow takeovers in which no former master is asked here."""
    monkeypatch.setattr("celery_redlock.core.settings.SHORTEST_TAKEOVER", 0.0)


@pytest.fixture
def redlock(redlock_sentinel: LocalSentinel) -> Iterator[Redlock]:
    with Redlock(redlock_sentinel.urls, ttl=MAX_TTL, max_ttl=MAX_TTL, takeover=TAKEOVER) as made:
        yield made


def test_a_lock_is_acquired_and_released_on_the_masters(
    redlock: Redlock, redlock_sentinel: LocalSentinel
) -> None:
    wait_until(lambda: kinds(redlock) == [Granted] * 3)
    lease = redlock.acquire("key")
    masters = [redlock_sentinel.client(group, 0) for group in range(3)]
    # The lock is acquired when two have granted it; the third is not waited for.
    wait_until(lambda: all(master.exists("redlock:key") for master in masters))
    assert lease.release()


def test_a_planned_failover_leads_to_the_new_master(
    redlock: Redlock, redlock_sentinel: LocalSentinel
) -> None:
    redlock.acquire("key").release()
    new = redlock_sentinel.fail_over(0)
    wait_until(lambda: kinds(redlock) == [Quarantined, Granted, Granted])
    wait_until(lambda: kinds(redlock) == [Granted] * 3)
    held = redlock.acquire("other")
    assert redlock_sentinel.client(0, new).exists("redlock:other")
    held.release()


def test_a_lease_outlives_the_failover_of_one_node(
    redlock: Redlock, redlock_sentinel: LocalSentinel
) -> None:
    with redlock.lock("key") as lease:
        redlock_sentinel.fail_over(0)
        wait_until(lambda: kinds(redlock) == [Quarantined, Granted, Granted])
        # Longer than the lease.
        wait_until(lambda: kinds(redlock) == [Granted] * 3)
        assert lease.is_valid


def test_a_lease_that_has_two_nodes_promoted_at_once_is_lost_in_time(
    redlock_sentinel: LocalSentinel,
) -> None:
    with Redlock(redlock_sentinel.urls, ttl=MAX_TTL, max_ttl=MAX_TTL) as redlock:
        lost = []
        with redlock.lock("key", on_lost=lost.append) as lease:
            for group in (0, 1):
                redlock_sentinel.kill(group, 0)
            wait_until(lambda: lost)
            assert not lease.is_valid


def test_a_new_master_whose_quarantine_has_ended_extends_at_once(
    redlock: Redlock, redlock_sentinel: LocalSentinel
) -> None:
    for group in range(3):
        redlock_sentinel.fail_over(group)
    wait_until(lambda: kinds(redlock) == [Granted] * 3)
    # This client knows the new masters no longer than for a takeover of half a minute.
    urls = redlock_sentinel.urls
    with Redlock(urls, ttl=MAX_TTL, max_ttl=MAX_TTL, takeover=30.0, guard=True) as other:
        lease = wait_until(lambda: _acquired(other), timeout=2 * TIMEOUT)
        lease.extend()
        assert lease.is_valid


def _acquired(redlock: Redlock) -> object:
    try:
        return redlock.acquire("key")
    except LockNotAcquired:
        return None


def test_without_a_majority_of_sentinels_no_vote_counts(
    redlock: Redlock, redlock_sentinel: LocalSentinel
) -> None:
    redlock.acquire("key").release()
    for index in (0, 1):
        redlock_sentinel.pause_sentinel(index)
    wait_until(lambda: kinds(redlock) == [Failed] * 3)
    with pytest.raises(QuorumUnavailable, match=r"was not confirmed|no majority of its Sentinels"):
        redlock.acquire("key")
    redlock_sentinel.resume_sentinel(0)
    wait_until(lambda: kinds(redlock) == [Granted] * 3)


def test_one_sentinel_may_be_gone(redlock: Redlock, redlock_sentinel: LocalSentinel) -> None:
    redlock_sentinel.kill_sentinel(0)
    assert redlock.acquire("key").release()


def test_a_client_that_was_idle_acquires_at_its_first_attempt(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock.acquire("key").release()
    watch = watch_of(redlock)
    monkeypatch.setattr(masters, "_IDLE", 0.0)
    wait_until(lambda: watch._pipe is None)
    let_time_pass(watch)
    monkeypatch.undo()
    assert redlock.acquire("key").release()


def test_a_forked_child_finds_the_masters_itself(redlock: Redlock) -> None:
    redlock.acquire("key").release()

    def find_them() -> None:
        let_time_pass(watch_of(redlock))
        redlock.acquire("key").release()

    assert end_of(in_child(find_them)) == 0
    assert redlock.acquire("key").release()


@pytest.mark.parametrize("redlock_sentinel", [{"groups": 1}], indirect=True)
def test_sentinels_with_tls_name_the_new_master(
    redlock_sentinel: LocalSentinel, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path)
    url, hosts = redlock_sentinel.urls[0], []
    with contextlib.ExitStack() as stack:
        for sentinel in redlock_sentinel.sentinel_urls:
            plain = int(sentinel.removesuffix("/0").rpartition(":")[2])
            port = stack.enter_context(terminate_tls(plain, certificate, key))
            hosts.append(f"127.0.0.1:{port}")
        url = f"redis+sentinel://{','.join(hosts)}/{url.rpartition('/')[2]}"
        with Redlock(f"{url}?sentinel_tls=true&ssl_ca_certs={certificate}", ttl=5.0) as client:
            client.acquire("before").release()
            redlock_sentinel.fail_over()
            client.acquire("after", wait=20.0).release()


@pytest.mark.parametrize("redlock_sentinel", [{"groups": 1}], indirect=True)
def test_one_group_goes_on_with_its_new_master(redlock_sentinel: LocalSentinel) -> None:
    with Redlock(redlock_sentinel.urls) as redlock:
        redlock.acquire("key").release()
        redlock_sentinel.kill(0, 0)
        redlock_sentinel.wait_for_failover(0, since=0)
        wait_until(lambda: _acquired(redlock))


def test_a_waiter_is_woken_by_the_new_master(
    redlock: Redlock, redlock_sentinel: LocalSentinel
) -> None:
    wake_ups = client_of(redlock).transport.wake_ups
    lease = redlock.acquire("key")
    listener, channels = _Listener(), frozenset({"redlock-meta:wake:1"})
    wake_ups.add(listener, channels)
    wait_until(lambda: wake_ups.are_live(channels))
    for group in (0, 1):
        redlock_sentinel.kill(group, 0)
        redlock_sentinel.wait_for_failover(group, since=0)
    wait_until(lambda: wake_ups.are_live(channels), timeout=2 * TIMEOUT)
    wake_ups.remove(listener, channels)
    lease.release()


class _Listener:
    is_live = False

    def on_wake(self, name: str, channel: str) -> None: ...

    def on_live(self) -> None: ...


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", PATCH)
def test_greenlets_find_the_masters(redlock_sentinel: LocalSentinel, kind: str) -> None:
    assert run_with_greenlets(kind, BODY, *redlock_sentinel.urls) == "all is well\n"


#: Prints how many times another greenlet ran while a Sentinel did not reply.
RUNS_MEANWHILE = """
import sys, time
from celery_redlock.transport import parse_node
from celery_redlock.transport.redis.sentinel import ask_sentinels
def count():
    while not ends:
        runs.append(1)
        time.sleep(0.01)
runs, ends = [], []
counting = spawn(count)
ask_sentinels(parse_node(sys.argv[1]), 1.0)
ends.append(1)
join(counting)
print(len(runs))
"""


@pytest.mark.parametrize("kind", PATCH)
def test_other_greenlets_run_while_sentinels_are_asked(
    kind: str,
) -> None:
    with fake_sentinels() as sentinels:
        sentinels[2].reply = lambda _: []
        assert int(run_with_greenlets(kind, RUNS_MEANWHILE, url_of(sentinels))) > 10


def test_a_client_may_be_disconnected_and_used_again(redlock: Redlock) -> None:
    redlock.acquire("key").release()
    redlock.disconnect()
    let_time_pass(watch_of(redlock))
    assert redlock.acquire("key").release()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watch_that_ended_by_an_error_begins_again(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    redlock.acquire("key").release()
    watch = watch_of(redlock)
    with monkeypatch.context() as broken:
        broken.setattr(masters.Sentinels, "rounds", fail)
        broken.setattr(masters, "_PAUSE", 0.0)
        wait_until(lambda: watch._pipe is None)
    let_time_pass(watch)
    assert redlock.acquire("key").release()


def test_a_former_master_that_is_promoted_again_sits_out_its_quarantine(
    redlock_sentinel: LocalSentinel,
) -> None:
    """It was stopped for the whole term of its successor, so its ids are those of before."""
    urls = redlock_sentinel.urls
    with (
        Redlock(urls, ttl=60.0, max_ttl=60.0, takeover=1.0) as holder,
        Redlock(urls, ttl=60.0, max_ttl=60.0, takeover=1.0) as other,
    ):
        other.acquire("warm").release()
        redlock_sentinel.pause(0, 0)
        redlock_sentinel.wait_for_failover(0, since=0)
        redlock_sentinel.arm()  # as if its quarantine had ended
        wait_until(lambda: kinds(holder) == [Granted] * 3)
        lease = holder.acquire("key", ttl=60.0)
        redlock_sentinel.client(2, 0).delete("redlock:key")  # as if it had not got there
        redlock_sentinel.kill(0, 1)
        redlock_sentinel.resume(0, 0)
        redlock_sentinel.wait_for_failover(0, since=1)
        wait_until(lambda: kinds(other) == [Quarantined, Granted, Granted])
        with pytest.raises(LockNotAcquired):
            other.acquire("key")
        assert lease.is_valid
