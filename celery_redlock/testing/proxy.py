"""A TCP proxy in front of local servers that breaks the network on purpose."""

from __future__ import annotations

import enum
import errno
import heapq
import itertools
import queue
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Literal

from celery_redlock.testing.server import LOOPBACK, ReservedPort

# The answer of a web server whose port was configured as that of a lock node.
GARBAGE = b"HTTP/1.1 400 Bad Request\r\nConnection: keep-alive\r\n\r\n"

_CALL_TIMEOUT = 10.0

_READ = selectors.EVENT_READ
_WRITE = selectors.EVENT_WRITE
_CHUNK = 64 * 1024

# Bytes that one direction holds before the sender's own buffers fill, as on a dead network.
_MAX_HELD = 1024 * 1024
_END = b""


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

    def __init__(self, node: _Node, client: socket.socket, server: socket.socket) -> None:
        self._node = node
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
        if not self._node.holds() and not self._is_forgotten:
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
        due = stream.put(self._node.due(reply=stream is self._replies), data)
        if due > time.monotonic():
            self._node.wake_at(due, self)

    def _update(self) -> None:
        self._node.watch(self.client, self._events(self._requests, self._replies), self)
        if self._connected:
            self._node.watch(self.server, self._events(self._replies, self._requests), self)
        else:
            self._node.watch(self.server, _WRITE, self)

    def _end(self) -> None:
        self._closed = True
        self._node.watch(self.client, 0, self)
        self._node.watch(self.server, 0, self)
        self._node.forget(self)

    @staticmethod
    def _events(incoming: _Stream, outgoing: _Stream) -> int:
        return (_READ if incoming.wants_to_read() else 0) | (_WRITE if outgoing.blocked else 0)


class GarbageServer:
    """A client's connection on which everything is answered with the same garbage."""

    def __init__(self, node: _Node, client: socket.socket, answer: bytes) -> None:
        self._node = node
        self.client = client
        self.sockets = (client,)
        self._answer = answer
        node.watch(client, _READ, self)

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
        self._node.watch(self.client, 0, self)
        close_with_reset(self.client)
        self._node.forget(self)


#: A client's connection, of either kind.
Link = ProxiedConnection | GarbageServer


class _Mode(enum.Enum):
    FORWARD = enum.auto()
    PARTITION = enum.auto()
    REFUSE = enum.auto()
    GARBAGE = enum.auto()


class _Loop:
    """The selector, the timers and the calls from other threads; all else runs inside it."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.timers: list[tuple[float, int, ProxiedConnection]] = []
        self.order = itertools.count()
        self.calls: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self.wake_receiver, self.wake_sender = socket.socketpair()
        self.wake_receiver.setblocking(False)
        self.wake_sender.setblocking(False)
        self.selector.register(self.wake_receiver, _READ, self._on_wake)
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            timeout = max(0.0, self.timers[0][0] - time.monotonic()) if self.timers else None
            for key, events in self.selector.select(timeout):
                # A callback may have closed or handed over a socket that is ready as well.
                if self.selector.get_map().get(key.fd) is key:
                    key.data(events)
            while self.timers and self.timers[0][0] <= time.monotonic():
                heapq.heappop(self.timers)[2].deliver()

    def call(self, function: Callable[[], None]) -> None:
        """Run the function in the loop's thread and wait for it."""
        future: Future[None] = Future()
        self.calls.put((function, future))
        self.wake_sender.send(b"!")
        future.result(_CALL_TIMEOUT)

    def close(self) -> None:
        self.selector.close()
        self.wake_receiver.close()
        self.wake_sender.close()

    def _on_wake(self, _: int) -> None:
        self.wake_receiver.recv(4096)
        while not self.calls.empty():
            function, future = self.calls.get()
            try:
                function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)


class _Node:
    """One proxied server; everything here runs in the loop's thread."""

    def __init__(self, loop: _Loop, target: tuple[str, int]) -> None:
        self.port = ReservedPort()
        self._loop = loop
        self._target = target
        self._mode = _Mode.FORWARD
        self._delays = {"requests": 0.0, "replies": 0.0}
        self._answer = GARBAGE
        self._connections: set[Link] = set()
        self._listener: socket.socket | None = None

    def forward(self) -> None:
        self._delays = dict.fromkeys(self._delays, 0.0)
        self._enter(_Mode.FORWARD)
        for connection in list(self._connections):
            if isinstance(connection, ProxiedConnection):
                connection.deliver_held()

    def partition(self) -> None:
        self._enter(_Mode.PARTITION)

    def refuse(self) -> None:
        self._enter(_Mode.REFUSE)
        self.reset_all()

    def garbage(self, answer: bytes) -> None:
        self._enter(_Mode.GARBAGE)
        self._answer = answer
        for connection in list(self._connections):
            if isinstance(connection, ProxiedConnection):
                self._connections.add(GarbageServer(self, connection.take_client(), answer))

    def delay(self, seconds: float, only: str | None) -> None:
        for direction in self._delays:
            if only is None or only == direction:
                self._delays[direction] = seconds

    def forget_all(self, *, resets: bool) -> None:
        for connection in self._connections:
            if isinstance(connection, ProxiedConnection):
                connection.be_forgotten(resets=resets)

    def close(self) -> None:
        self._stop_listening()
        self.reset_all()
        self.port.release()

    def sockets(self) -> list[socket.socket]:
        """Return every socket here, for a forked child to close."""
        found = [self._listener] if self._listener else []
        return [*found, *(sock for link in self._connections for sock in link.sockets)]

    # For the links of this node:

    def holds(self) -> bool:
        """Return whether bytes must wait for the network to heal."""
        return self._mode is _Mode.PARTITION

    def due(self, *, reply: bool) -> float:
        """Return when bytes that arrive now may leave."""
        return time.monotonic() + self._delays["replies" if reply else "requests"]

    def wake_at(self, due: float, link: ProxiedConnection) -> None:
        """Call the link's `deliver` at that time."""
        heapq.heappush(self._loop.timers, (due, next(self._loop.order), link))

    def watch(self, sock: socket.socket, events: int, link: Link) -> None:
        """Call the link's `on_event` when the socket is ready for these events; 0 for none."""
        self._watch(sock, events, partial(link.on_event, sock))

    def forget(self, link: Link) -> None:
        """Take note that a link has ended."""
        self._connections.discard(link)

    def _enter(self, mode: _Mode) -> None:
        if self._mode is _Mode.GARBAGE:
            for connection in list(self._connections):
                if isinstance(connection, GarbageServer):
                    connection.reset()
        self._mode = mode
        if mode is _Mode.REFUSE:
            self._stop_listening()
            return
        if self._listener is None:
            self._listener = self.port.listen()
        # Across a partition the kernel still accepts, but no node answers: bytes wait in its
        # buffer.
        events = 0 if mode is _Mode.PARTITION else _READ
        self._watch(self._listener, events, self._on_connection)

    def _watch(self, sock: socket.socket, events: int, callback: Callable[[int], None]) -> None:
        selector = self._loop.selector
        known = selector.get_map().get(sock)
        if known is None and events:
            selector.register(sock, events, callback)
        elif known is not None and not events:
            selector.unregister(sock)
        elif known is not None and known.events != events:
            selector.modify(sock, events, callback)

    def _on_connection(self, _: int) -> None:
        if self._listener is None:
            return
        try:
            client, _peer = self._listener.accept()
        except OSError:
            return
        _prepare(client)
        if self._mode is _Mode.GARBAGE:
            self._connections.add(GarbageServer(self, client, self._answer))
            return
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        _prepare(server)
        if server.connect_ex(self._target) not in (0, errno.EINPROGRESS):
            close_with_reset(client)
            server.close()
            return
        self._connections.add(ProxiedConnection(self, client, server))

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._watch(self._listener, 0, self._on_connection)
            self._listener.close()
            self._listener = None

    def reset_all(self) -> None:
        for connection in list(self._connections):
            connection.reset()


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class TcpProxy:
    """
    Sits between clients and local servers, one loopback port per server.

    It does to connections what a network does: hold bytes, delay them, refuse, reset, corrupt. It
    works on byte streams, not packets: the kernel still accepts connections to a node that is cut
    off, and a server that refuses shows as a connection that is reset at once.

    It runs in one native thread (a greenlet where the process is monkey-patched). Every method
    returns once its change is in effect. In a forked child the proxy does nothing.
    """

    def __init__(self, targets: Sequence[tuple[str, int]]) -> None:
        self._loop = _Loop()
        self._nodes = [_Node(self._loop, target) for target in targets]
        self._thread = threading.Thread(
            target=self._loop.run, name="celery-redlock-proxy", daemon=True
        )
        self._thread.start()
        for index in range(len(targets)):
            self.heal(index)

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Where clients connect, in the order of the targets."""
        return tuple((LOOPBACK, node.port.number) for node in self._nodes)

    def partition(self, index: int) -> None:
        """
        Hold all bytes in both directions; connections stay open and new ones get no answer.

        The bytes arrive when the node is healed, as if TCP had sent them again, even if the sender
        has closed its end by then.
        """
        self._loop.call(self._nodes[index].partition)

    def refuse(self, index: int) -> None:
        """Reset open connections and refuse new ones."""
        self._loop.call(self._nodes[index].refuse)

    def reset(self, index: int) -> None:
        """Reset open connections; new ones are treated as before."""
        self._loop.call(self._nodes[index].reset_all)

    def forget(self, index: int, *, resets: bool = False) -> None:
        """
        Lose all bytes of the connections that are open; new ones work, and a heal changes nothing.

        That is what a firewall or a load balancer does to connections that were idle for too long.

        Args:
            index: the node.
            resets: whether the next bytes are answered with a reset instead of silence.
        """
        self._loop.call(partial(self._nodes[index].forget_all, resets=resets))

    def garbage(self, index: int, answer: bytes = GARBAGE) -> None:
        """Answer everything with these bytes; nothing reaches the server."""
        self._loop.call(partial(self._nodes[index].garbage, answer))

    def delay(
        self, index: int, seconds: float, *, only: Literal["requests", "replies"] | None = None
    ) -> None:
        """Delay every byte, in each direction or in only one."""
        self._loop.call(partial(self._nodes[index].delay, seconds, only))

    def heal(self, index: int) -> None:
        """Undo everything above; held and delayed bytes arrive at once, in order."""
        self._loop.call(self._nodes[index].forward)

    def close(self) -> None:
        """End every connection, the thread and the ports. May be called again."""
        if self._thread.is_alive():
            self._loop.call(self._close_in_loop)
            self._thread.join()
            self._loop.close()

    def reset_after_fork(self) -> None:
        """Close a forked child's copies, which would keep the parent's connections open."""
        for node in self._nodes:
            for sock in node.sockets():
                sock.close()
        self._loop.close()

    def _close_in_loop(self) -> None:
        for node in self._nodes:
            node.close()
        self._loop.stopping = True
