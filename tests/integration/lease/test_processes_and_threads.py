"""Threads, forks, processes and signals: one holder at a time, and no connection out of step."""

from __future__ import annotations

import multiprocessing
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from celery_redlock import LockNotAcquired
from celery_redlock.core.lease import holding_of
from tests.support.forking import end_of, in_child
from tests.support.nodes import ServerNodes
from tests.support.together import in_threads
from tests.support.waiting import wait_until


class Ledger:
    """Shared memory that sees overlaps, lost updates and tokens that fall back."""

    def __init__(self) -> None:
        self._inside, self._overlaps, self._newest, self._fallen_back, self._count = range(5)
        self._memory = multiprocessing.RawArray("q", 5)

    def work(self, token: int) -> None:
        """Read, dawdle and write, as only one holder at a time may."""
        memory = self._memory
        memory[self._overlaps] += memory[self._inside]
        memory[self._inside] = 1
        memory[self._fallen_back] += token <= memory[self._newest]
        memory[self._newest] = token
        count = memory[self._count]
        time.sleep(0.0005)
        memory[self._count] = count + 1
        memory[self._inside] = 0

    def check(self, expected: int) -> None:
        seen = [self._memory[at] for at in (self._overlaps, self._fallen_back, self._count)]
        assert seen == [0, 0, expected]


def test_sixteen_threads_never_overlap_and_tokens_increase(servers: ServerNodes) -> None:
    client = servers.connected()
    ledger = Ledger()

    def work(_: int) -> None:
        for _ in range(10):
            lease = client.acquire("key", wait=100.0)
            ledger.work(lease.fencing_token)
            lease.check()
            lease.release()

    in_threads(16, work)
    ledger.check(160)


def test_four_processes_never_overlap_and_tokens_increase(servers: ServerNodes) -> None:
    client = servers.connected()
    ledger = Ledger()

    def work() -> None:
        for _ in range(25):
            with client.lock("key", wait=100.0) as lease:
                ledger.work(lease.fencing_token)

    children = [in_child(work) for _ in range(4)]
    assert [end_of(child) for child in children] == [0] * 4
    ledger.check(100)


def test_a_forked_child_holds_nothing_and_the_parent_goes_on(servers: ServerNodes) -> None:
    client = servers.connected()
    with client.lock("key", ttl=5.0) as lease:
        servers.wait_held(lease)

        def check() -> None:
            assert not lease.is_valid
            assert lease.lost == "it is held by the parent of this forked process"
            assert not lease.release()
            with pytest.raises(LockNotAcquired):
                client.acquire("key")
            with client.lock("other", ttl=5.0, wait=10.0) as own:
                trust = holding_of(own).valid_until
                wait_until(lambda: holding_of(own).valid_until > trust)
            client.close()

        assert end_of(in_child(check)) == 0
        servers.wait_held(lease)
        trust = holding_of(lease).valid_until
        wait_until(lambda: holding_of(lease).valid_until > trust)
        lease.check()
    servers.wait_free("key")


def test_forking_while_other_threads_use_the_client(servers: ServerNodes) -> None:
    client = servers.connected()
    stop = threading.Event()

    def use(number: int) -> None:
        while not stop.is_set():
            with client.lock(f"key-{number}", wait=30.0):
                pass

    def use_in_child() -> None:
        for _ in range(3):
            client.acquire("in the child", wait=30.0).release()
        client.close()

    with ThreadPoolExecutor(4) as pool:
        users = [pool.submit(use, number) for number in range(4)]
        ends = [end_of(in_child(use_in_child)) for _ in range(10)]
        stop.set()
    assert ends == [0] * 10
    assert [user.exception() for user in users] == [None] * 4


class Struck(Exception):
    """What a time limit's handler raises, anywhere."""


# An exception in the middle of Thread.start makes CPython's own bookkeeping of that thread fail.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_exceptions_from_signal_handlers_leave_no_key_and_no_connection_out_of_step(
    servers: ServerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    client = servers.connected()
    armed = False

    def strike(_: int, __: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Struck

    earlier = signal.signal(signal.SIGALRM, strike)
    struck = 0
    try:
        for number in range(100):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.003))
                while armed:
                    client.acquire(f"key-{number}", ttl=5.0, wait=2.0).release()
            except Struck:
                struck += 1
            except KeyError as lost:
                # Half done, Thread.start does not find itself in its own books, and says so.
                if not isinstance(lost.__context__, Struck):
                    raise
                struck += 1
            finally:
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, earlier)
    assert struck > 10
    # Whatever was interrupted, the client works and nothing outlives its TTL.
    for number in range(100):
        assert client.acquire(f"key-{number}", wait=20.0).release()
    assert "another question" not in caplog.text
