"""
The transport for real servers: one client's nodes, and the channels to them.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from celery_redlock.protocol import Command, Kind, quorum
from celery_redlock.transport import clock
from celery_redlock.transport.channel import RedisChannel
from celery_redlock.transport.dial import Dialer
from celery_redlock.transport.health import NodeHealth
from celery_redlock.transport.interface import Channel, Done
from celery_redlock.transport.nodes import NodeAddress
from celery_redlock.transport.primitives import native_lock

_logger = logging.getLogger(__name__)

#: A connection, with look-up, TLS and authentication, may take so long; it is off the caller's path
#: except at the very first.
_CONNECT_TIMEOUT = 1.0

#: Steps of a connection attempt (look-up, connect, TLS, HELLO, AUTH, INFO, scripts), each of which
#: may take so long.
_MOST_STEPS = 8

#: Idle channels that are kept; a burst of threads must not leave its connections open for good.
_MOST_IDLE = 16


class RedisTransport:
    """
    N servers that are spoken to at once.

    Attributes:
        dialers: one for each node.
        health: one for each node, shared by all channels.
        dialing: connection attempts under way, so that `close` can wait for the last.
    """

    def __init__(
        self, nodes: Sequence[NodeAddress], *, node_timeout: float, max_ttl: float
    ) -> None:
        self.node_timeout = node_timeout
        self.max_ttl = max_ttl
        self.connect_timeout = max(_CONNECT_TIMEOUT, node_timeout)
        self.quorum = quorum(len(nodes))
        self.dialers = [Dialer(node, self.connect_timeout) for node in nodes]
        self.health = [NodeHealth(node.name) for node in nodes]
        self._names = tuple(node.name for node in nodes)
        self._start_over()
        _transports.add(self)

    def _start_over(self) -> None:
        self.dialing = DialAttempts()
        self._closed = False
        self._run_ids: dict[int, str] = {}
        self._idle: deque[RedisChannel] = deque()
        self._idle_native: deque[RedisChannel] = deque()
        self._lock = native_lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes' display names, without passwords."""
        return self._names

    def refusals(self, kind: Kind) -> dict[str, str]:
        """Return the nodes that refused a script when they were last asked for it, and why."""
        return {
            health.name: health.refusals[kind] for health in self.health if kind in health.refusals
        }

    def now(self) -> float:
        """Read the clock that bounds trust."""
        return clock.now()

    def wall_us(self) -> int:
        """Read the wall clock."""
        return clock.wall_us()

    def sleep(self, seconds: float) -> None:
        """Let time pass, and other greenlets run."""
        time.sleep(seconds)

    def checkout(self, *, native: bool = False) -> RedisChannel:
        """Borrow a channel; the one used last, so that a lease meets its own connections again."""
        try:
            return (self._idle_native if native else self._idle).pop()
        except IndexError:
            return RedisChannel(self, native=native)

    def checkin(self, channel: Channel) -> None:
        """Give a channel back."""
        assert isinstance(channel, RedisChannel)
        idle = self._idle_native if channel.native else self._idle
        with self._lock:
            afterwards, channel.afterwards = channel.afterwards, []
            for say in afterwards:
                say(channel)
            if not self._closed and len(idle) < _MOST_IDLE:
                idle.append(channel)
                return
            channel.closed = True
        channel.close()

    def discard(self, channel: Channel) -> None:
        """Give back a channel whose state is not known; it is closed."""
        assert isinstance(channel, RedisChannel)
        with self._lock:
            channel.closed = True
            afterwards, channel.afterwards = channel.afterwards, []
        channel.close()
        for say in afterwards:
            self._say_elsewhere(say, native=channel.native)

    def settle(self, channel: Channel, command: Command, nodes: Sequence[int]) -> None:
        """Say a command to nodes behind what was said on `channel`, whoever uses it now."""
        self._say_behind(channel, lambda used: used.post(command, nodes))

    def follow(self, channel: Channel, command: Command, done: Done) -> None:
        """Say a command to nodes that are done by then, behind what was said on `channel`."""
        self._say_behind(channel, lambda used: used.follow(command, done))

    def _say_behind(self, channel: Channel, say: Callable[[RedisChannel], None]) -> None:
        assert isinstance(channel, RedisChannel)
        idle = self._idle_native if channel.native else self._idle
        with self._lock:
            if not channel.closed:
                try:
                    # Borrowed meanwhile, because checking out does not take the lock.
                    idle.remove(channel)
                except ValueError:
                    channel.afterwards.append(say)
                    return
                try:
                    say(channel)
                finally:
                    idle.append(channel)
                return
        self._say_elsewhere(say, native=channel.native)

    def _say_elsewhere(self, say: Callable[[RedisChannel], None], *, native: bool) -> None:
        """Say it although the channel behind whose words it belongs is closed."""
        other = self.checkout(native=native)
        try:
            say(other)
        except BaseException:
            self.discard(other)
            raise
        self.checkin(other)

    def same_server(self, index: int, run_id: str | None) -> str:
        """Return why a node may not vote: it answers with the run id of another node."""
        if run_id is None:
            return ""
        # Both connections to one server are mostly made at the same time.
        with self._lock:
            for other, seen in self._run_ids.items():
                if other != index and seen == run_id:
                    return (
                        f"is the same server as {self._names[other]}, which would have two votes; "
                        "name independent servers"
                    )
            self._run_ids[index] = run_id
        return ""

    def close(self) -> None:
        """Close all connections and wait for those that are being made."""
        with self._lock:
            self._closed = True
            channels = [*self._idle, *self._idle_native]
            self._idle.clear()
            self._idle_native.clear()
            for channel in channels:
                channel.closed = True
        for channel in channels:
            channel.close()
        self.dialing.wait_for_none(_MOST_STEPS * self.connect_timeout)

    def forget_parent(self) -> None:
        """Begin anew in a forked child: its connections are the parent's."""
        closed, channels = self._closed, (*self._idle, *self._idle_native)
        # First of all: whatever goes wrong with the rest, nothing of the parent's is waited for.
        self._start_over()
        self._closed = closed
        for channel in channels:
            channel.abandon()


_transports: weakref.WeakSet[RedisTransport] = weakref.WeakSet()


def _after_fork() -> None:
    for transport in tuple(_transports):
        try:
            transport.forget_parent()
        except Exception:
            _logger.exception("A forked child could not drop its parent's lock connections")


os.register_at_fork(after_in_child=_after_fork)


class DialAttempts:
    """Connection attempts under way."""

    def __init__(self) -> None:
        self._under_way: set[object] = set()

    def begin(self, attempt: object) -> None:
        """Count an attempt."""
        self._under_way.add(attempt)

    def end(self, attempt: object) -> None:
        """Count it no longer."""
        self._under_way.discard(attempt)

    def wait_for_none(self, limit: float) -> None:
        """Wait for the last to end, for `limit` seconds at most."""
        deadline = clock.now() + limit
        # Attempts run in native threads or in greenlets; only sleeping lets both go on.
        while self._under_way and clock.now() < deadline and not sys.is_finalizing():
            time.sleep(0.002)
