"""
The connections of one channel: made off the caller's path, replaced when they break or stay silent.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from celery_redlock._greenlets.poller import READ, WRITE, as_milliseconds, new_poller
from celery_redlock._greenlets.threads import raise_if_finalizing, start_native_thread
from celery_redlock._greenlets.unpatched import close_greenlet_hub, native_lock
from celery_redlock._greenlets.wakeup import WakeupPipe
from celery_redlock.protocol import Command, Script
from celery_redlock.transport.clock import now as clock
from celery_redlock.transport.redis.connection import ConnectionBrokenError, NodeConnection
from celery_redlock.transport.redis.connector import describe_failure

if TYPE_CHECKING:
    from celery_redlock.transport.redis.transport import PendingConnects, RedisTransport

#: A connection attempt that was made a moment ago is waited for although a quorum is there: a lease
#: on all nodes bears more than one on a bare quorum.
_GRACE = 0.05

#: A node that has been silent for so long may be gone for good behind a dead connection.
_DEAD_AFTER = 2.0


class Connections:
    """
    One link for each node, or None.

    Links are made in short-lived threads (greenlets where threads are patched) which hand them over
    through `_arrived` and ring the bell that the poll listens to.

    Attributes:
        by_node: by node.
        complete: whether every node has a link that answers; if so, `ensure` has nothing to do.
    """

    def __init__(
        self,
        transport: RedisTransport,
        on_connect: Callable[[int, NodeConnection], None],
        *,
        native: bool,
    ) -> None:
        self.by_node: list[NodeConnection | None] = [None] * len(transport.connectors)
        self.complete = False
        self._transport = transport
        self._native = native
        self._poller = new_poller(native=native)
        self._index_of: dict[int, int] = {}
        self._connected: deque[tuple[int, NodeConnection | None, str]] = deque()
        self._on_connect = on_connect
        self._connecting: dict[int, float] = {}
        self._retired: list[tuple[float, NodeConnection]] = []
        self._closed = False
        self._handover_lock = native_lock()
        self._wakeup = WakeupPipe()
        self._poller.register(self._wakeup.fd, READ)
        # A poll of its own: unread answers on the links must not turn the wait into a spin.
        self._connected_poller = new_poller(native=native)
        self._connected_poller.register(self._wakeup.fd, READ)

    def ensure(self, now: float, limit: float) -> list[int]:
        """
        Start whatever connections are due, and wait until a quorum is there, within bounds.

        Args:
            now: the time.
            limit: seconds to wait at most.

        Returns:
            The nodes whose connections are new.
        """
        fresh = self.take_connected()
        health = self._transport.health
        node_timeout = self._transport.node_timeout
        complete = True
        for index, connection in enumerate(self.by_node):
            if connection is None or connection.is_overdue(now, _DEAD_AFTER):
                complete = False
                if not health[index].is_backing_off(now):
                    self._start_connect(index)
            elif connection.is_overdue(now, node_timeout):
                complete = False
        self.complete = complete
        if self._usable(now) < self._transport.quorum:
            # A quorum needs them: nodes in their pause as well.
            for index, connection in enumerate(self.by_node):
                if connection is None:
                    self._start_connect(index)
        while (remaining := min(self._awaited_until(now), now + limit) - clock()) > 0:
            self._connected_poller.poll(as_milliseconds(remaining))
            fresh += self.take_connected()
        while self._retired and self._retired[0][0] < now:
            self._retired.pop(0)[1].close()
        return fresh

    def ready(self, remaining: float) -> Iterator[tuple[int, NodeConnection]]:
        """Wait at most so long, and yield the links that have something to read."""
        for fd, events in self._poller.poll(as_milliseconds(remaining)):
            index = self._index_of.get(fd)
            if index is None:
                self._wakeup.drain()
                continue
            connection = self.by_node[index]
            if connection is None:
                continue
            if events & WRITE:
                # What is wrong with the connection shows when it is read.
                with contextlib.suppress(ConnectionBrokenError):
                    connection.flush()
                if not connection.has_unsent:
                    self._poller.modify(fd, READ)
            if events & ~WRITE:
                yield index, connection

    def await_writable(self, connection: NodeConnection) -> None:
        """Let `ready` pass on what the node's buffer did not take."""
        self._poller.modify(connection.fd, READ | WRITE)

    def drop(self, index: int, reason: str) -> None:
        """Close a broken link; what it still owed to the node is kept for the next one."""
        connection = self.by_node[index]
        if connection is None:
            return
        now = clock()
        self._transport.health[index].record_failure(reason, now)
        self._detach(index, connection)
        self._defer_unanswered(index, connection)
        connection.close()

    def close(self) -> None:
        """Close all links, also those that are still being made."""
        self._closed = True
        for index, connection in enumerate(self.by_node):
            if connection is not None:
                self._detach(index, connection)
                connection.close()
        for _, connection in self._retired:
            connection.close()
        self._retired.clear()
        self._discard_connected()
        self._wakeup.close()

    def reset_after_fork(self) -> None:
        """Drop everything without a word on the wire."""
        self.by_node[:] = [None] * len(self.by_node)
        self._wakeup.close_in_child()

    def defer(self, index: int, command: Command) -> None:
        """
        Keep a command for when there is a connection to the node.

        The thread that makes one says it; if it has just handed one over, `take_arrivals` shows it.
        """
        with self._handover_lock:
            self._transport.health[index].defer(command)

    def _awaited_until(self, now: float) -> float:
        """Return until when the connection attempts that are under way are worth a wait."""
        health = self._transport.health
        lacking = [index for index in self._connecting if self.by_node[index] is None]
        if lacking and self._usable(now) < self._transport.quorum:
            return now + self._connect_wait()
        begun = [self._connecting[index] for index in lacking if health[index].reason is None]
        return max(begun, default=0.0) + _GRACE

    def _usable(self, now: float) -> int:
        return sum(
            connection is not None and (health.reason is None or not health.is_backing_off(now))
            for connection, health in zip(self.by_node, self._transport.health, strict=True)
        )

    def _connect_wait(self) -> float:
        # A first connection may need a name look-up and a TLS handshake; later ones must not hold
        # up an attempt for longer than a node's answer may.
        first = any(not self._transport.health[index].was_connected for index in self._connecting)
        return self._transport.connect_timeout if first else self._transport.node_timeout

    def _start_connect(self, index: int) -> None:
        if index in self._connecting:
            return
        self._connecting[index] = clock()
        attempts = self._transport.pending_connects
        attempt = object()
        run = partial(self._connect_and_hand_over, index, attempts, attempt)
        try:
            attempts.begin(attempt)
            if self._native:
                start_native_thread(run, "redlock-connect")
            else:
                raise_if_finalizing()
                threading.Thread(target=run, daemon=True, name="redlock-connect").start()
        except RuntimeError as exc:
            # The process may have no more threads; that is one node less, not the caller's end.
            attempts.end(attempt)
            self._connected.append((index, None, str(exc)))
            self._wakeup.wake()
        except BaseException as exc:
            # From a signal's handler; the thread may be there or not.
            attempts.end(attempt)
            if isinstance(exc, KeyError) and exc.__context__ is not None:
                # Thread.start stumbles over its own cleaning up and hides what has struck it.
                raise exc.__context__ from None
            raise

    def _connect_and_hand_over(
        self, index: int, attempts: PendingConnects, attempt: object
    ) -> None:
        connection: NodeConnection | None = None
        reason = "the connection attempt was broken off"
        try:
            connection, run_id = self._transport.connectors[index].connect(native=self._native)
            reason = self._transport.duplicate_server_problem(index, run_id)
            if reason:
                connection.close()
                connection = None
        except Exception as exc:
            reason = describe_failure(exc)
        finally:
            try:
                self._hand_over(index, connection, reason)
                if self._closed:
                    self._discard_connected()
                else:
                    self._wakeup.wake()
                if self._native:
                    close_greenlet_hub()
            finally:
                attempts.end(attempt)

    def _hand_over(self, index: int, connection: NodeConnection | None, reason: str) -> None:
        with self._handover_lock:
            # Here and not where the link is taken over: that may be never, if nobody wants a lock.
            if connection is not None:
                try:
                    self._on_connect(index, connection)
                except ConnectionBrokenError as exc:
                    connection.close()
                    connection, reason = None, str(exc)
            self._connected.append((index, connection, reason))

    def take_connected(self) -> list[int]:
        """Take over the connections that have been made; return their nodes."""
        if not self._connected:
            return []
        self._wakeup.drain()
        fresh = []
        now = clock()
        while self._connected:
            index, connection, reason = self._connected.popleft()
            self._connecting.pop(index, None)
            health = self._transport.health[index]
            if connection is None:
                health.record_failure(reason, now)
                continue
            health.was_connected = True
            health.record_success()
            self._attach(index, connection, now)
            fresh.append(index)
        return fresh

    def _attach(self, index: int, connection: NodeConnection, now: float) -> None:
        old = self.by_node[index]
        if old is not None and not old.is_overdue(now, self._transport.node_timeout):
            connection.close()
            return
        if old is not None:
            # The old connection may lead to nowhere, or to a server that will wake and run what is
            # in its buffer, the release included. So it is kept open for one longest lease.
            self._detach(index, old)
            self._defer_unanswered(index, old)
            self._retired.append((now + self._transport.max_ttl, old))
        self.by_node[index] = connection
        self._index_of[connection.fd] = index
        self._poller.register(connection.fd, READ)

    def _detach(self, index: int, connection: NodeConnection) -> None:
        self.by_node[index] = None
        self.complete = False
        del self._index_of[connection.fd]
        self._poller.unregister(connection.fd)

    def _defer_unanswered(self, index: int, connection: NodeConnection) -> None:
        health = self._transport.health[index]
        for entry in connection.pending:
            if entry.command.script is Script.RELEASE:
                health.defer(entry.command)

    def _discard_connected(self) -> None:
        # By the closing thread and the dialing one, at the same time.
        with contextlib.suppress(IndexError):
            while True:
                connection = self._connected.popleft()[1]
                if connection is not None:
                    connection.close()
