"""One proxied connection: bytes read on one side, kept until due, written to the other."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections import deque
from typing import Protocol

_READ = selectors.EVENT_READ
_WRITE = selectors.EVENT_WRITE
_CHUNK = 64 * 1024

# Bytes that one direction holds before the sender's own buffers fill, as on a dead network.
_MAX_HELD = 1024 * 1024
_END = b""


class Route(Protocol):
    """The proxy of a node, as its connections see it."""

    def holds(self) -> bool:
        """Whether bytes must wait for the network to heal."""

    def due(self, *, reply: bool) -> float:
        """When bytes that arrive now may leave."""

    def wake_at(self, due: float, link: ProxiedConnection) -> None:
        """Call the link's `deliver` at that time."""

    def watch(self, sock: socket.socket, events: int, link: Link) -> None:
        """Call the link's `on_event` when the socket is ready for these events; 0 for none."""

    def forget(self, link: Link) -> None:
        """The link has ended."""


def close_with_reset(sock: socket.socket) -> None:
    """Close a connection so that its other end sees a reset, not an orderly end."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    finally:
        sock.close()


class _Stream:
    """One direction of a link."""

    __slots__ = ("blocked", "ended", "finished", "held", "queue", "sink", "source")

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.queue: deque[tuple[float, bytes]] = deque()
        self.held = 0
        self.blocked = False
        self.ended = False  # the source will send no more
        self.finished = False  # the sink has got all it will ever get

    def wants_to_read(self) -> bool:
        return not self.ended and self.held < _MAX_HELD

    def put(self, due: float, data: bytes) -> float:
        # Never before what came earlier: the order of bytes is what TCP promises.
        if self.queue:
            due = max(due, self.queue[-1][0])
        self.queue.append((due, data))
        self.held += len(data)
        return due

    def deliver(self, now: float) -> None:
        while self.queue and not self.blocked and self.queue[0][0] <= now:
            due, data = self.queue.popleft()
            self.held -= len(data)
            try:
                if data == _END:
                    self.finished = True
                    self.sink.shutdown(socket.SHUT_WR)
                    return
                rest = data[self.sink.send(data) :]
            except BlockingIOError:
                rest = data
            except OSError:
                self.abandon()
                return
            if rest:
                self.blocked = True
                self.held += len(rest)
                self.queue.appendleft((due, rest))

    def abandon(self) -> None:
        self.finished = True
        self.queue.clear()
        self.held = 0


class ProxiedConnection:
    """A client's connection and the one to the server behind it."""

    def __init__(self, route: Route, client: socket.socket, server: socket.socket) -> None:
        self._route = route
        self.client = client
        self.server = server
        self.sockets = (client, server)
        self._requests = _Stream(client, server)
        self._replies = _Stream(server, client)
        self._connected = False
        self._closed = False
        self._is_forgotten = self._resets = False
        self._update()

    def on_event(self, sock: socket.socket, events: int) -> None:
        """Move what can be moved on this socket."""
        if sock is self.server and not self._connected:
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.reset()
                return
            self._connected = True
        incoming, outgoing = self._requests, self._replies
        if sock is self.server:
            incoming, outgoing = outgoing, incoming
        if events & _WRITE:
            outgoing.blocked = False
        if events & _READ:
            self._receive(incoming)
            if self._resets:
                self.reset()
                return
        self.deliver()

    def deliver(self) -> None:
        """Write what is due, unless the network holds it; nothing once the link has ended."""
        if self._closed:
            return
        if not self._route.holds() and not self._is_forgotten:
            now = time.monotonic()
            if self._connected:
                self._requests.deliver(now)
            self._replies.deliver(now)
        if self._requests.finished and self._replies.finished:
            self.close()
        else:
            self._update()

    def be_forgotten(self, *, resets: bool) -> None:
        """Deliver nothing any more, in silence; or reset both ends once bytes come."""
        self._is_forgotten, self._resets = True, resets

    def deliver_held(self) -> None:
        """Deliver at once all that was held or delayed, in order."""
        now = time.monotonic()
        for stream in (self._requests, self._replies):
            stream.queue = deque((now, data) for _, data in stream.queue)
        self.deliver()

    def reset(self) -> None:
        """End both connections with a reset; what was held is lost."""
        self._end()
        close_with_reset(self.client)
        close_with_reset(self.server)

    def close(self) -> None:
        """End both connections."""
        self._end()
        self.client.close()
        self.server.close()

    def take_client(self) -> socket.socket:
        """Give the client's connection away and end the rest."""
        self._end()
        self.server.close()
        return self.client

    def _receive(self, stream: _Stream) -> None:
        try:
            data = stream.source.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            # A reset travels no faster than the bytes before it.
            data = _END
        stream.ended = data == _END
        if stream.finished:
            return
        due = stream.put(self._route.due(reply=stream is self._replies), data)
        if due > time.monotonic():
            self._route.wake_at(due, self)

    def _update(self) -> None:
        self._route.watch(self.client, self._events(self._requests, self._replies), self)
        if self._connected:
            self._route.watch(self.server, self._events(self._replies, self._requests), self)
        else:
            self._route.watch(self.server, _WRITE, self)

    def _end(self) -> None:
        self._closed = True
        self._route.watch(self.client, 0, self)
        self._route.watch(self.server, 0, self)
        self._route.forget(self)

    @staticmethod
    def _events(incoming: _Stream, outgoing: _Stream) -> int:
        return (_READ if incoming.wants_to_read() else 0) | (_WRITE if outgoing.blocked else 0)


class GarbageServer:
    """A client's connection on which everything is answered with the same garbage."""

    def __init__(self, route: Route, client: socket.socket, answer: bytes) -> None:
        self._route = route
        self.client = client
        self.sockets = (client,)
        self._answer = answer
        route.watch(client, _READ, self)

    def on_event(self, sock: socket.socket, events: int) -> None:
        """Answer, or end with the client."""
        try:
            if sock.recv(_CHUNK):
                sock.send(self._answer)
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.reset()

    def reset(self) -> None:
        """End the connection: after garbage, a client cannot match replies to requests."""
        self._route.watch(self.client, 0, self)
        close_with_reset(self.client)
        self._route.forget(self)


#: A client's connection, of either kind.
Link = ProxiedConnection | GarbageServer
