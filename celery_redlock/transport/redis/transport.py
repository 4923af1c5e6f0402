"""
The transport for real servers: a pool of channels, and the order of commands across them.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from celery_redlock._greenlets.threads import register_at_fork
from celery_redlock._greenlets.unpatched import native_lock, on_native_thread
from celery_redlock._log import event_logger
from celery_redlock.protocol.commands import Command, Script
from celery_redlock.transport import clock
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.base import AckedNodes, Channel, Durations, borrowed
from celery_redlock.transport.listeners import WaitingCall
from celery_redlock.transport.redis.channel import RedisChannel
from celery_redlock.transport.redis.connect_error import ConnectError
from celery_redlock.transport.redis.node_set import NodeSet
from celery_redlock.transport.redis.wake_ups import RedisWakeUps

_logger = event_logger(__name__)

#: Idle channels that are kept, enough for the threads of a web server: if they send at one moment,
#: none has to connect. A burst of more must not leave its connections open for good.
_MAX_IDLE = 64


class RedisTransport:
    """
    A `Transport` to Redis or Valkey servers. Thread-safe and fork-safe.

    Args:
        nodes: the servers.
        durations: of the client.
        on_deferred: called when releases are deferred; has to arrange that `deliver_deferred` is
            called until it returns True.

    Attributes:
        names: the nodes' display names, without passwords.
        wake_ups: that the nodes publish; connects when there is a listener.
    """

    def __init__(
        self,
        nodes: Sequence[NodeAddress],
        durations: Durations,
        on_deferred: Callable[[RedisTransport], object],
    ) -> None:
        self._nodes = NodeSet(nodes, durations)
        self.names = self._nodes.names
        self._closed = False
        self._on_deferred = on_deferred
        self._reset_pool()
        _transports.add(self)

    def _reset_pool(self) -> None:
        self._idle: deque[RedisChannel] = deque()
        self._idle_native: deque[RedisChannel] = deque()
        self._lock = native_lock()
        self.wake_ups = RedisWakeUps(self._nodes)
        self._delivers = False

    def refusals(self, script: Script) -> dict[str, str]:
        """Return the nodes that answered a script with an error the last time, and the error."""
        return {
            health.name: health.refusals[script]
            for health in self._nodes.health
            if script in health.refusals
        }

    def failures(self) -> dict[str, ConnectError | None]:
        """Return why nodes failed when they were last used; None if one is not connected yet."""
        found: dict[str, ConnectError | None] = {}
        for health in self._nodes.health:
            reason = health.reason  # read once: another thread may use the node
            if reason is not None:
                found[health.name] = ConnectError(reason, lasting=health.lasting)
            elif not health.was_connected:
                found[health.name] = None
        return found

    def now(self) -> float:
        """Read the clock that bounds validity."""
        return clock.now()

    def wall_us(self) -> int:
        """Read the wall clock."""
        return clock.wall_us()

    def sleep(self, seconds: float) -> None:
        """Let time pass, and other greenlets run."""
        time.sleep(seconds)

    def wait(self, call: WaitingCall, seconds: float) -> bool:
        """Let this time pass, or less if a call is woken; return whether it was."""
        return call.sleep(seconds)

    def checkout(self) -> RedisChannel:
        """Borrow the idle channel used last, so that a lease uses the same connections again."""
        native = on_native_thread()
        try:
            return (self._idle_native if native else self._idle).pop()
        except IndexError:
            return RedisChannel(self._nodes, native=native)

    def checkin(self, channel: Channel) -> None:
        """Give a channel back; commands that were queued behind its borrower are sent now."""
        assert isinstance(channel, RedisChannel)
        idle = self._idle_of(channel)
        with self._lock:
            queued, channel.queued_sends = channel.queued_sends, []
            for send in queued:
                send(channel)
            keeps = not self._closed and len(idle) < _MAX_IDLE
            if keeps:
                idle.append(channel)
            else:
                channel.closed = True
        if not keeps:
            channel.close()
        self._report_deferred()

    def discard(self, channel: Channel) -> None:
        """Close a channel whose state is not known."""
        assert isinstance(channel, RedisChannel)
        with self._lock:
            channel.closed = True
            queued, channel.queued_sends = channel.queued_sends, []
        channel.close()
        for send in queued:
            self._send_on_another(send)
        self._report_deferred()

    def deliver_deferred(self) -> bool:
        """Send deferred releases where possible; return whether there is nothing left to do."""
        goes_on = False
        try:
            with borrowed(self) as channel:
                assert isinstance(channel, RedisChannel)
                is_done = channel.deliver_deferred()
            goes_on = not (is_done or self._closed or self._deferred_are_old())
        finally:
            self._delivers = goes_on
            # This failed, or another release was deferred meanwhile, for this call to deliver.
            if not self._deferred_are_old():
                self._report_deferred()
        return not goes_on

    def _deferred_are_old(self) -> bool:
        """Return whether all keys of deferred releases have expired, except those of messages."""
        last = max(health.deferred_at for health in self._nodes.health)
        return last < self.now() - self._nodes.max_ttl

    def _report_deferred(self) -> None:
        """Report releases that are deferred, unless that is done already."""
        if not self._delivers and not self._closed and self._nodes.has_deferred():
            self._delivers = True  # before the report: the delivery may end before it returns
            with contextlib.suppress(RuntimeError, OSError):  # no more threads or pipes
                try:
                    self._on_deferred(self)
                except BaseException:
                    self._delivers = False
                    raise

    def drain(self, channel: Channel) -> None:
        """Take the replies that have come on a channel; a borrowed one is left to its borrower."""
        assert isinstance(channel, RedisChannel)
        with self._lock:
            is_idle = self._use_idle(channel, RedisChannel.drain)
        if is_idle:
            self._report_deferred()

    def send_behind(self, channel: Channel, command: Command, nodes: Sequence[int]) -> None:
        """Send a command behind those sent on `channel`, whichever call has borrowed it now."""
        self._in_order(channel, lambda used: used.send(command, nodes))

    def send_after_ack(self, channel: Channel, command: Command, acked: AckedNodes) -> None:
        """Send a command to the nodes in `acked`, behind what was sent on `channel`."""
        self._in_order(channel, lambda used: used.send_after_ack(command, acked))

    def _in_order(self, channel: Channel, send: Callable[[RedisChannel], None]) -> None:
        assert isinstance(channel, RedisChannel)
        with self._lock:
            is_open = not channel.closed
            if is_open and not self._use_idle(channel, send):
                channel.queued_sends.append(send)
                return
        if is_open:
            self._report_deferred()
        else:
            self._send_on_another(send)

    def _use_idle(self, channel: RedisChannel, use: Callable[[RedisChannel], None]) -> bool:
        """Use a channel unless it is borrowed; return whether it was used. Needs the lock."""
        idle = self._idle_of(channel)
        try:
            # It may have been borrowed meanwhile: `checkout` does not take the lock.
            idle.remove(channel)
        except ValueError:
            return False
        try:
            use(channel)
        finally:
            idle.append(channel)
        return True

    def _idle_of(self, channel: RedisChannel) -> deque[RedisChannel]:
        return self._idle_native if channel.native else self._idle

    def _send_on_another(self, send: Callable[[RedisChannel], None]) -> None:
        """Send on another channel, because the one it should be ordered behind is closed."""
        with borrowed(self) as other:
            assert isinstance(other, RedisChannel)
            send(other)

    def close(self) -> None:
        """Close all idle connections and wait for those that are being made. Idempotent."""
        self.wake_ups.close()  # first: its listeners may send
        with self._lock:
            self._closed = True
            channels = [*self._idle, *self._idle_native]
            self._idle.clear()
            self._idle_native.clear()
            for channel in channels:
                channel.closed = True
        if self._nodes.watch is not None:
            self._nodes.watch.close()
        until = clock.now() + self._nodes.node_timeout
        for channel in channels:
            channel.await_receivers(until)
            channel.close()
        self._nodes.wait_for_connects()

    def reset_after_fork(self) -> None:
        """Begin anew in a forked child: its connections are the parent's."""
        channels = (*self._idle, *self._idle_native)
        # First, so that the child waits for nothing of the parent's, whatever goes wrong below.
        self._reset_pool()
        self._nodes.reset_after_fork()
        for channel in channels:
            channel.reset_after_fork()


_transports: weakref.WeakSet[RedisTransport] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for transport in tuple(_transports):
        try:
            transport.reset_after_fork()
        except Exception:
            _logger.exception(
                "child-connections-left",
                "A forked child could not drop its parent's lock connections",
            )


register_at_fork(after_in_child=_reset_after_fork)
