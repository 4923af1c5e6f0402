"""
The masters of the nodes that can fail over: watched while a client is used, and connected to.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from celery_redlock._greenlets.polling import WakeupPipe
from celery_redlock._greenlets.threads import start_native_thread
from celery_redlock._greenlets.unpatched import (
    close_greenlet_hub,
    native_lock,
    on_native_thread,
    unpatched,
)
from celery_redlock.protocol.commands import LEAD_SOURCE
from celery_redlock.protocol.keys import EPOCH_KEY, GUARD_KEY
from celery_redlock.protocol.mastership import MAX_AGE, Master
from celery_redlock.protocol.timing import milliseconds
from celery_redlock.transport import clock
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.base import Durations
from celery_redlock.transport.redis.connect_error import OF_MASTER, ConnectError, hides_ids
from celery_redlock.transport.redis.connector import Connector
from celery_redlock.transport.redis.sentinel import (
    FIRST_READING,
    SentinelGroup,
    Sentinels,
    ask_sentinels,
)

#: Seconds from the beginning of one reading to that of the next, those in which a reading ends, and
#: those for which the Sentinels are read after the last use.
_PAUSE, _LONGEST, _IDLE = 2.0, 2.0, 30.0


class MasterWatch:
    """
    Watches the masters of a client's nodes, in a native thread that runs while the client is used.

    Thread-safe and fork-safe.

    Raises:
        ConfigurationError: a URL has an option that its Sentinels cannot be reached with.

    Attributes:
        groups: by the identity of the node's address.
        quarantine_ms: of a promoted server; 0: the guard is off.
    """

    def __init__(self, addresses: Iterable[NodeAddress], durations: Durations) -> None:
        max_ttl, takeover = durations.max_ttl, durations.takeover
        self.groups = {one.identity: SentinelGroup(one, takeover) for one in addresses}
        # Without a takeover the guard is off.
        self.quarantine_ms = milliseconds(max_ttl + takeover) if takeover else 0
        self._timeout = durations.node_timeout
        # Those of the thread that watches; made here, they refuse wrong options.
        self._sentinels = Sentinels(self.groups.values(), self._timeout)
        self._pipe: WakeupPipe | None = None
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Begin anew in a forked child, which has none of its parent's threads."""
        self._lock = native_lock()
        self._closed = False
        self._used_at = self._read_at = float("-inf")
        self._sentinels.reset_after_fork()
        if self._pipe is not None:
            self._pipe.close_in_child()
            self._pipe = None

    def use(self, limit: float = math.inf) -> None:
        """
        Have the masters watched for a while.

        After a pause it waits for a reading, at most four node timeouts and `limit` seconds.
        """
        now = clock.now()
        with self._lock:  # so that a watch that ends at this moment begins again
            self._used_at = now
            self._closed = False
            if self._pipe is None:
                self._start()
            elif now - self._read_at > MAX_AGE:
                self._pipe.wake()  # after a suspension
        sleep = unpatched("time", "sleep") if on_native_thread() else time.sleep
        until = now + min(FIRST_READING * self._timeout, limit)
        while now - self._read_at > MAX_AGE and clock.now() < until and not sys.is_finalizing():
            sleep(0.002)

    def master_of(self, address: NodeAddress) -> Master:
        """
        Return the master of a node.

        Raises:
            ConnectError: no majority of its Sentinels has named one lately.
        """
        self.use()
        group = self.groups[address.identity]
        if group.master is None or not group.master.is_confirmed(clock.now()):
            problem = group.problem or "its Sentinels have not replied lately"
            raise ConnectError(problem, lasting=group.lasting)
        return group.master

    def close(self) -> None:
        """Stop watching until the next use. Idempotent."""
        self._closed = True
        with self._lock:
            pipe = self._pipe
        if pipe is not None:
            pipe.wake()

    def _start(self) -> None:
        try:
            self._pipe = pipe = WakeupPipe()
            start_native_thread(partial(self._run, pipe), "redlock-masters")
        except (RuntimeError, OSError):
            self._pipe = None  # no more threads or pipes, so no master is confirmed
        except BaseException:
            self._pipe = None  # a thread that has begun ends
            raise

    def _run(self, pipe: WakeupPipe) -> None:
        # Its own: the answer to another thread's question would seem to be newer than it is.
        sentinels = Sentinels(self.groups.values(), self._timeout)
        try:
            while self._is_watching(pipe, sentinels):
                until = clock.now() + _PAUSE
                self._read(pipe, sentinels)
                while self._pauses() and (left := until - clock.now()) > 0:
                    pipe.wait(left)
        finally:
            with self._lock:
                self._end(pipe, sentinels)  # after an error: the next use starts another thread
            close_greenlet_hub()

    def _read(self, pipe: WakeupPipe, sentinels: Sentinels) -> None:
        """
        Ask every Sentinel, and let the groups learn what they report.

        They have been read as soon as all masters are named, or at the end unless a Sentinel is
        still being connected to.
        """
        asked_at = clock.now()
        for reports, is_whole in sentinels.rounds(pipe, _LONGEST):
            are_named = True
            for group, reported in zip(self.groups.values(), reports, strict=True):
                is_named = group.named_by(list(reported.values())) is not None
                are_named &= is_named
                if is_named or is_whole:
                    group.learn(reported, asked_at)
            if are_named or (is_whole and sentinels.are_done):
                self._read_at = asked_at

    def _pauses(self) -> bool:
        """Return whether a pause lasts, whatever has ended a wait."""
        return not self._closed and clock.now() - self._read_at <= MAX_AGE

    def _is_watching(self, pipe: WakeupPipe, sentinels: Sentinels) -> bool:
        """Return whether a thread watches on; end it if the client is idle or closed."""
        with self._lock:
            is_used = not self._closed and clock.now() - self._used_at < _IDLE
            if is_used and self._pipe is pipe:
                self._sentinels = sentinels
                return True
            self._end(pipe, sentinels)
        return False

    def _end(self, pipe: WakeupPipe, sentinels: Sentinels) -> None:
        sentinels.close()
        if self._pipe is pipe:
            self._pipe = None
        pipe.close()


class GroupConnector(Connector):
    """
    Opens connections to the master of a group.

    Args:
        address: the node.
        timeout: seconds for each step.
        watch: knows the master; None: the Sentinels are asked for each connection.
    """

    def __init__(
        self, address: NodeAddress, timeout: float, watch: MasterWatch | None = None
    ) -> None:
        super().__init__(address, timeout, OF_MASTER)
        self._timeout = timeout
        self._watch = watch

    def master(self) -> Master | None:
        if self._watch is not None:
            return self._watch.master_of(self.address)
        group = SentinelGroup(self.address, 0.0)
        asked_at = clock.now()
        group.learn(ask_sentinels(self.address, self._timeout), asked_at)
        if group.master is None:
            raise ConnectError(group.problem, lasting=group.lasting)
        return group.master

    def _admit(self, connection: Any, info: dict[str, str] | None, master: Master) -> None:
        if self._watch is None or not self._watch.quarantine_ms:
            return
        if hides_ids(info):
            raise ConnectError(
                "hides INFO from this user, so its failovers cannot be noticed; grant +info",
                lasting=True,
            )
        keys = (GUARD_KEY, EPOCH_KEY)
        connection.send_command(
            "EVAL", LEAD_SOURCE, len(keys), *keys, master.epoch, self._watch.quarantine_ms
        )
        master.has_voted |= connection.read_response() == 1

    @contextlib.contextmanager
    def _explained(self, connection: Any) -> Iterator[None]:
        try:
            with super()._explained(connection):
                yield
        except ConnectError as exc:
            where = f"its master {connection.host}:{connection.port}"
            raise ConnectError(f"{where} {exc}", lasting=exc.lasting) from exc.__cause__


def connector_to(
    address: NodeAddress, timeout: float, watch: MasterWatch | None = None
) -> Connector:
    """Return what opens connections to a node; arguments as for `GroupConnector`."""
    if address.fails_over:
        return GroupConnector(address, timeout, watch)
    return Connector(address, timeout)
