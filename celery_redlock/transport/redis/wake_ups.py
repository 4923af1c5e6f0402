"""
Wake-ups: one connection to each node, on which it publishes the waiters that may try again.

They only save time. A node that is not connected, or whose user has no right to its channels, wakes
no waiter; waiters then try again by themselves.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import hiredis

from celery_redlock._greenlets.polling import READ, WakeupPipe, as_milliseconds, new_poller
from celery_redlock._greenlets.threads import call_in_app, start_native_thread
from celery_redlock._log import event_logger
from celery_redlock.transport import clock
from celery_redlock.transport.listeners import Listener, Listeners
from celery_redlock.transport.redis.framing import ReplyReader
from celery_redlock.transport.redis.node_set import NodeSet

_logger = event_logger(__name__)

#: Seconds for which connections are kept after the last listener has gone.
_IDLE = 30.0

#: Seconds after which a silent node is asked for a sign of life, with a repeated subscription.
_PING_AFTER = 10.0

#: Seconds until the next attempt to connect to a node, doubled after each that fails.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

#: The same if the node refuses its user, who may get the right meanwhile.
_REFUSED_PAUSE = 300.0

#: Seconds after which a reader looks at the clock, if nothing happens.
_POLL = 5.0


class RedisWakeUps(Listeners):
    """
    The wake-ups of all nodes of a client. Thread-safe.

    Attributes:
        closed: connections end at once; the next listener opens them again.
    """

    def __init__(self, nodes: NodeSet) -> None:
        super().__init__()
        self._nodes = nodes
        self._readers = [_Reader(self, nodes, index) for index in range(len(nodes.names))]
        self.closed = False

    def add(self, listener: Listener, channels: Iterable[str]) -> None:
        """Begin to call a listener for some channels; connects in the background if needed."""
        with self.lock:
            self.closed = False
            super().add(listener, channels)
            for reader in self._readers:
                reader.notice()

    def are_live(self, channels: frozenset[str]) -> bool:
        """Return whether a quorum of nodes publishes to all of these channels."""
        live = sum(channels <= reader.live for reader in self._readers)
        return live >= self._nodes.quorum

    def close(self) -> None:
        """Close all connections. Idempotent."""
        with self.lock:
            self.closed = True
            listeners = {one for group in self._by_channel.values() for one in group}
            self._by_channel.clear()
            for reader in self._readers:
                reader.notice()
        for listener in listeners:
            listener.on_close()
            listener.on_live()  # it finds the client closed

    def woken(self, channel: str, name: str) -> None:
        """Call the listeners of a channel: a node has woken a waiter."""
        for listener in self.of(channel):
            listener.on_wake(name, channel)

    def subscribed(self, channel: str) -> None:
        """Call the listeners of a channel if a quorum of nodes now publishes to it."""
        for listener in self.of(channel):
            if listener.is_live:
                listener.on_live()


class _Reader:
    """
    Reads one node's wake-ups, in a native thread that runs while there are listeners.

    Attributes:
        live: the channels on which the node publishes to us.
    """

    def __init__(self, wake_ups: RedisWakeUps, nodes: NodeSet, index: int) -> None:
        self.live: frozenset[str] = frozenset()
        self._wake_ups = wake_ups
        self._nodes = nodes
        self._index = index
        self._pipe: WakeupPipe | None = None
        self._has_warned = False
        self._socket: Any = None
        self._asked: frozenset[str] = frozenset()

    def notice(self) -> None:
        """Adapt to a change of the channels. The caller holds the lock of the wake-ups."""
        if self._pipe is not None:
            self._pipe.wake()
        elif self._wake_ups.channels:
            self._pipe = WakeupPipe()
            try:
                start_native_thread(partial(self._run, self._pipe), "redlock-wake-ups")
            except RuntimeError:
                self._pipe = None  # no more threads: waiters try again by themselves

    def _run(self, pipe: WakeupPipe) -> None:
        pause = _FIRST_PAUSE
        while self._wake_ups.channels or not self._end(pipe):
            begun = clock.now()
            try:
                self._serve(pipe)
            except Exception as exc:
                self._log(exc)
                if clock.now() - begun > _LONGEST_PAUSE:
                    pause = _FIRST_PAUSE
                self._wait(pipe, _REFUSED_PAUSE if isinstance(exc, hiredis.ReplyError) else pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _log(self, exc: Exception) -> None:
        """Log why the node wakes no waiter; a refusal, as of a missing right, once as a warning."""
        warns = isinstance(exc, hiredis.ReplyError) and not self._has_warned
        self._has_warned |= warns
        call_in_app(
            _logger.log,
            logging.WARNING if warns else logging.DEBUG,
            "node-wakes-nobody",
            "Lock node %(node)s cannot publish wake-ups; waiting tasks poll instead: %(error)s",
            node=self._nodes.names[self._index],
            error=exc,
        )

    def _serve(self, pipe: WakeupPipe) -> None:
        """
        Subscribe, and read while there are listeners, and a while longer.

        Raises what breaks the connection.
        """
        connector, timeout = self._nodes.connectors[self._index], self._nodes.node_timeout
        master = connector.master()
        connection, self._socket = connector.open_unchecked(master)
        self._asked = frozenset()
        try:
            self._socket.settimeout(timeout)
            replies = ReplyReader(self._socket)
            poller = new_poller()
            poller.register(self._socket.fileno(), READ)
            poller.register(pipe.fd, READ)
            heard_at = used_at = clock.now()
            asked_at = math.inf
            while not self._wake_ups.closed:
                wanted, now = self._wake_ups.channels, clock.now()
                self._subscribe(wanted)
                used_at = now if wanted else used_at
                if now - used_at > _IDLE:
                    return
                # The question has the node's master watched on.
                if master is not None and connector.master() is not master:
                    raise OSError("is no longer the node's master")
                if now - heard_at > _PING_AFTER and asked_at == math.inf:
                    self._send("SUBSCRIBE", next(iter(self._asked)))
                    asked_at = clock.now()
                ready = [fd for fd, _ in poller.poll(as_milliseconds(_POLL))]
                if pipe.fd in ready:
                    pipe.drain()
                if self._socket.fileno() in ready:
                    for reply in replies.read():
                        self._handle(reply)
                    heard_at, asked_at = clock.now(), math.inf
                elif now - asked_at > timeout:
                    raise OSError(f"no answer within {timeout:.3g} s")
        finally:
            self.live = frozenset()
            connection.disconnect()

    def _subscribe(self, wanted: frozenset[str]) -> None:
        # No subscription is ended: keys with waiters often have some again, and 256 are few.
        if new := wanted - self._asked:
            self._send("SUBSCRIBE", *sorted(new))
            self._asked |= new

    def _send(self, *words: str) -> None:
        self._socket.sendall(hiredis.pack_command(words))  # type: ignore[arg-type]

    def _handle(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            raise reply
        match reply:
            case [b"message", bytes() as channel, bytes() as name]:
                self._wake_ups.woken(
                    channel.decode(errors="replace"), name.decode(errors="replace")
                )
            case [b"subscribe", bytes() as channel, _]:
                new = (self._asked & {channel.decode(errors="replace")}) - self.live
                self.live |= new
                for subscribed in new:
                    self._wake_ups.subscribed(subscribed)
            case _:
                raise OSError(f"answered garbage: {str(reply)[:80]}")

    def _wait(self, pipe: WakeupPipe, seconds: float) -> None:
        until = clock.now() + seconds
        while self._wake_ups.channels and (left := until - clock.now()) > 0:
            pipe.wait(left)

    def _end(self, pipe: WakeupPipe) -> bool:
        """End the thread, unless there are listeners again."""
        with self._wake_ups.lock:
            if self._wake_ups.channels:
                return False
            self._pipe = None
        pipe.close()
        return True
