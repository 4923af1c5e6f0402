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

from celery_redlock._greenlets.threads import on_native_thread
from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock.protocol import Command, Script, quorum
from celery_redlock.transport import clock
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.base import AckedNodes, Channel
from celery_redlock.transport.redis.channel import RedisChannel
from celery_redlock.transport.redis.connector import Connector
from celery_redlock.transport.redis.health import NodeHealth

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
        connectors: one for each node.
        health: one for each node, shared by all channels.
        pending_connects: connection attempts under way, so that `close` can wait for the last.
    """

    def __init__(
        self, nodes: Sequence[NodeAddress], *, node_timeout: float, max_ttl: float
    ) -> None:
        self.node_timeout = node_timeout
        self.max_ttl = max_ttl
        self.connect_timeout = max(_CONNECT_TIMEOUT, node_timeout)
        self.quorum = quorum(len(nodes))
        self.connectors = [Connector(node, self.connect_timeout) for node in nodes]
        self.health = [NodeHealth(node.name) for node in nodes]
        self._names = tuple(node.name for node in nodes)
        self._reset()
        _transports.add(self)

    def _reset(self) -> None:
        self.pending_connects = PendingConnects()
        self._closed = False
        self._run_ids: dict[int, str] = {}
        self._idle: deque[RedisChannel] = deque()
        self._idle_native: deque[RedisChannel] = deque()
        self._lock = native_lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes' display names, without passwords."""
        return self._names

    def refusals(self, script: Script) -> dict[str, str]:
        """Return the nodes that refused a script when they were last asked for it, and why."""
        return {
            health.name: health.refusals[script]
            for health in self.health
            if script in health.refusals
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

    def checkout(self) -> RedisChannel:
        """Borrow a channel; the one used last, so that a lease meets its own connections again."""
        native = on_native_thread()
        try:
            return (self._idle_native if native else self._idle).pop()
        except IndexError:
            return RedisChannel(self, native=native)

    def checkin(self, channel: Channel) -> None:
        """Give a channel back."""
        assert isinstance(channel, RedisChannel)
        idle = self._idle_native if channel.native else self._idle
        with self._lock:
            queued_sends, channel.queued_sends = channel.queued_sends, []
            for send in queued_sends:
                send(channel)
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
            queued_sends, channel.queued_sends = channel.queued_sends, []
        channel.close()
        for send in queued_sends:
            self._on_another_channel(send)

    def send_behind(self, channel: Channel, command: Command, nodes: Sequence[int]) -> None:
        """Say a command to nodes behind what was said on `channel`, whoever uses it now."""
        self._in_order(channel, lambda used: used.send(command, nodes))

    def send_after_ack(self, channel: Channel, command: Command, acked: AckedNodes) -> None:
        """Say a command to nodes that are done by then, behind what was said on `channel`."""
        self._in_order(channel, lambda used: used.send_after_ack(command, acked))

    def _in_order(self, channel: Channel, send: Callable[[RedisChannel], None]) -> None:
        assert isinstance(channel, RedisChannel)
        idle = self._idle_native if channel.native else self._idle
        with self._lock:
            if not channel.closed:
                try:
                    # Borrowed meanwhile, because checking out does not take the lock.
                    idle.remove(channel)
                except ValueError:
                    channel.queued_sends.append(send)
                    return
                try:
                    send(channel)
                finally:
                    idle.append(channel)
                return
        self._on_another_channel(send)

    def _on_another_channel(self, send: Callable[[RedisChannel], None]) -> None:
        """Say it although the channel behind whose words it belongs is closed."""
        other = self.checkout()
        try:
            send(other)
        except BaseException:
            self.discard(other)
            raise
        self.checkin(other)

    def duplicate_server_problem(self, index: int, run_id: str | None) -> str:
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
        self.pending_connects.wait_for_none(_MOST_STEPS * self.connect_timeout)

    def reset_after_fork(self) -> None:
        """Begin anew in a forked child: its connections are the parent's."""
        closed, channels = self._closed, (*self._idle, *self._idle_native)
        # First of all: whatever goes wrong with the rest, nothing of the parent's is waited for.
        self._reset()
        self._closed = closed
        for channel in channels:
            channel.reset_after_fork()


_transports: weakref.WeakSet[RedisTransport] = weakref.WeakSet()


def _after_fork() -> None:
    for transport in tuple(_transports):
        try:
            transport.reset_after_fork()
        except Exception:
            _logger.exception("A forked child could not drop its parent's lock connections")


os.register_at_fork(after_in_child=_after_fork)


class PendingConnects:
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
