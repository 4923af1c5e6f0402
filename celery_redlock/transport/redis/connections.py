"""
The connections of one channel: made off the caller's path, replaced when broken or silent.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial

from celery_redlock._greenlets.polling import READ, WRITE, WakeupPipe, as_milliseconds, new_poller
from celery_redlock._greenlets.threads import raise_if_finalizing, start_native_thread
from celery_redlock._greenlets.unpatched import close_greenlet_hub, native_lock
from celery_redlock.protocol.commands import Command, Script
from celery_redlock.transport.base import VoteReceiver
from celery_redlock.transport.clock import now as clock
from celery_redlock.transport.redis.connect_error import ConnectError, failure_of
from celery_redlock.transport.redis.connection import (
    ConnectionBrokenError,
    NodeConnection,
    PendingReply,
)
from celery_redlock.transport.redis.node_set import NodeSet

#: Seconds to wait for a fresh connection attempt although a quorum is connected: a lease on all
#: nodes survives more failures than one on a bare quorum.
_GRACE = 0.05

#: Node timeouts for which a caller waits for first connections, without which the first lock would
#: not be acquired: over TLS, a slow but working node needs several round trips for them.
_FIRST_CONNECT_WAIT = 4

#: A connection that is silent for more seconds may lead nowhere and is replaced (decision 0002).
_DEAD_AFTER = 2.0


class Connections:
    """
    One connection for each node, or None.

    Connections are made in short-lived threads (greenlets where threads are patched), which hand
    them over through `_connected` and wake the poll.

    Attributes:
        by_node: each node's connection, or None.
        complete: whether every node has a connection that replies; `ensure` has nothing to do then.
    """

    def __init__(
        self,
        nodes: NodeSet,
        on_connect: Callable[[int, NodeConnection], None],
        *,
        native: bool,
    ) -> None:
        self.by_node: list[NodeConnection | None] = [None] * len(nodes.names)
        self.complete = False
        self._nodes = nodes
        self._native = native
        self._poller = new_poller()
        self._index_of: dict[int, int] = {}
        self._connected: deque[tuple[int, NodeConnection | ConnectError]] = deque()
        self._on_connect = on_connect
        self._connecting: dict[int, float] = {}
        self._replace_at: dict[int, float] = {}
        self._retired: list[tuple[float, NodeConnection]] = []
        self._closed = False
        self._handover_lock = native_lock()
        self._wakeup = WakeupPipe()
        self._poller.register(self._wakeup.fd, READ)

    def ensure(self, now: float, limit: float) -> list[int]:
        """
        Start the connection attempts that are due, and wait for a quorum, within bounds.

        Args:
            now: the time.
            limit: seconds to wait at most.

        Returns:
            The nodes whose connections are new.
        """
        fresh = self.take_connected()
        health = self._nodes.health
        complete = True
        for index, connection in enumerate(self.by_node):
            if connection is not None and self._nodes.leads_to_former(index, connection):
                self._retire(index, connection, now)
                connection = None
            if connection is None:
                complete = False
                if not health[index].is_backing_off(now):
                    self.start_connect(index, now)
            elif connection.is_overdue(now, _DEAD_AFTER):
                complete = False
                # Not after a back-off: every call to a silent node begins another one.
                if now >= self._replace_at.get(index, now):
                    self._replace_at[index] = now + _DEAD_AFTER
                    self.start_connect(index, now)
            elif connection.is_overdue(now, self._nodes.node_timeout):
                complete = False
        self.complete = complete
        if self._usable(now) < self._nodes.quorum:
            # The quorum needs nodes that are backing off as well.
            for index, connection in enumerate(self.by_node):
                if connection is None:
                    self.start_connect(index, now)
        # Not from `now`: this process may have paused while the attempts began.
        begun = clock()
        while (remaining := min(self._awaited_until(begun), now + limit) - clock()) > 0:
            # Not by the poller: unread replies must not turn this wait into a spin.
            self._wakeup.wait(remaining)
            fresh += self.take_connected()
        fresh += self.take_connected()  # those that were made while this process paused
        while self._retired and self._retired[0][0] < now:
            self._retired.pop(0)[1].close()
        return fresh

    def made(self) -> Iterator[tuple[int, NodeConnection]]:
        """Yield the nodes that have a connection, each with it."""
        for index, connection in enumerate(self.by_node):
            if connection is not None:
                yield index, connection

    def lead_to_former(self) -> bool:
        """Return whether a connection leads to a server that is no longer its node's master."""
        return any(self._nodes.leads_to_former(*made) for made in self.made())

    def connect_to_deferred(self, now: float) -> list[int]:
        """Begin to connect to nodes with deferred releases; return those that are connected."""
        fresh = self.take_connected()
        for index, health in enumerate(self._nodes.health):
            if not health.deferred:
                continue
            if self.by_node[index] is not None:
                fresh.append(index)
            elif not health.is_backing_off(now):
                self.start_connect(index, now)
        return fresh

    def is_slow(self, index: int, now: float) -> bool:
        """Return whether a connection attempt takes longer than a node's reply may."""
        return now - self._connecting.get(index, now) >= self._nodes.node_timeout

    def ready(self, remaining: float) -> Iterator[tuple[int, NodeConnection]]:
        """Wait up to `remaining` seconds, and yield the connections that have bytes to read."""
        for fd, events in self._poller.poll(as_milliseconds(remaining)):
            index = self._index_of.get(fd)
            if index is None:
                self._wakeup.drain()
                continue
            connection = self.by_node[index]
            if connection is None:
                continue
            if events & WRITE:
                # A broken connection shows when it is read.
                with contextlib.suppress(ConnectionBrokenError):
                    connection.flush()
                if not connection.has_unsent:
                    self._poller.modify(fd, READ)
            if events & ~WRITE:
                yield index, connection

    def await_writable(self, connection: NodeConnection) -> None:
        """Let `ready` send the bytes that the socket did not take."""
        self._poller.modify(connection.fd, READ | WRITE)

    def drop(self, index: int, reason: str, keeps: Collection[PendingReply] = ()) -> None:
        """
        Close a broken connection; its unanswered releases are deferred to the next one.

        Args:
            index: the node.
            reason: why it broke.
            keeps: unanswered commands that the caller sends again.
        """
        connection = self.by_node[index]
        if connection is None:
            return
        # A server may close what is idle, and works all the same.
        if connection.pending:
            self._nodes.health[index].record_failure(reason, clock())
        self._detach(index, connection)
        self._defer_unanswered(index, connection, keeps)
        connection.close()

    def retire_silent(self, now: float) -> None:
        """Use those connections no more on which a reply is missing."""
        for index, connection in self.made():
            if connection.pending:
                self._retire(index, connection, now)

    def is_connecting(self, index: int) -> bool:
        """Return whether a connection to a node is being made."""
        return index in self._connecting

    def close(self) -> None:
        """Close all connections, also those that are being made; defer unanswered releases."""
        self._closed = True
        for index, connection in self.made():
            self._detach(index, connection)
            self._defer_unanswered(index, connection)
            connection.close()
        for _, connection in self._retired:
            connection.close()
        self._retired.clear()
        self._discard_connected()
        self._wakeup.close()

    def reset_after_fork(self) -> None:
        """Drop everything in a forked child, and send nothing."""
        self.by_node[:] = [None] * len(self.by_node)
        self._wakeup.close_in_child()

    def defer(self, index: int, command: Command, receiver: VoteReceiver | None = None) -> None:
        """
        Keep a release until the node is connected; then its receiver gets the node's reply.

        The thread that connects sends it; if that thread has just handed its connection over,
        `take_connected` returns the node.
        """
        with self._handover_lock:
            self._nodes.health[index].defer(command, receiver)

    def _awaited_until(self, now: float) -> float:
        """Return the time until which the connection attempts under way are worth a wait."""
        health = self._nodes.health
        lacking = [index for index in self._connecting if self.by_node[index] is None]
        if lacking and self._usable(now) < self._nodes.quorum:
            return now + self._connect_wait()
        begun = [self._connecting[index] for index in lacking if health[index].reason is None]
        return max(begun, default=0.0) + _GRACE

    def _usable(self, now: float) -> int:
        return sum(
            connection is not None and (health.reason is None or not health.is_backing_off(now))
            for connection, health in zip(self.by_node, self._nodes.health, strict=True)
        )

    def _connect_wait(self) -> float:
        # A first connection may need a name look-up and a TLS handshake; later ones, and those of a
        # node that has failed, must not hold up an attempt for longer than a node's reply may.
        connecting = (self._nodes.health[index] for index in self._connecting)
        first = any(not node.was_connected and node.reason is None for node in connecting)
        return (_FIRST_CONNECT_WAIT if first else 1) * self._nodes.node_timeout

    def start_connect(self, index: int, now: float) -> None:
        """Begin to connect to a node, unless that is under way."""
        if index in self._connecting:
            return
        self._connecting[index] = now
        attempts = self._nodes.connecting
        attempt = object()
        end = partial(attempts.discard, attempt)
        run = partial(self._connect_and_deliver, index, end)
        try:
            attempts.add(attempt)
            if self._native:
                start_native_thread(run, "redlock-connect")
            else:
                raise_if_finalizing()
                threading.Thread(target=run, daemon=True, name="redlock-connect").start()
        except RuntimeError as exc:
            # The process can start no more threads: one node less, and no error for the caller.
            end()
            self._connected.append((index, ConnectError(str(exc), lasting=False)))
            self._wakeup.wake()
        except BaseException as exc:
            # Raised by a signal handler; the thread may have started or not.
            end()
            if isinstance(exc, KeyError) and exc.__context__ is not None:
                # Thread.start fails in its own clean-up and hides the exception that struck it.
                raise exc.__context__ from None
            raise

    def _connect_and_deliver(self, index: int, end: Callable[[], None]) -> None:
        made: NodeConnection | ConnectError
        made = ConnectError("the connection attempt was interrupted", lasting=False)
        try:
            made, run_id = self._nodes.connectors[index].connect()
            if problem := self._nodes.duplicate_server_problem(index, run_id):
                made.close()
                made = ConnectError(problem, lasting=True)
        except Exception as exc:
            made = failure_of(exc)
        finally:
            try:
                self._deliver(index, made)
                if self._closed:
                    self._discard_connected()
                else:
                    self._wakeup.wake()
                if self._native:
                    close_greenlet_hub()
            finally:
                end()

    def _deliver(self, index: int, made: NodeConnection | ConnectError) -> None:
        with self._handover_lock:
            # Deferred releases are sent here, because no caller may ever take the connection over.
            if isinstance(made, NodeConnection):
                try:
                    self._on_connect(index, made)
                except ConnectionBrokenError as exc:
                    self._defer_unanswered(index, made)
                    made.close()
                    made = ConnectError(str(exc), lasting=False)
            self._connected.append((index, made))

    @property
    def has_new(self) -> bool:
        """Whether an attempt to connect has ended since `take_connected`."""
        with self._handover_lock:
            return bool(self._connected)

    def take_connected(self) -> list[int]:
        """Take over the connections that have been made; return their nodes."""
        if not self._connected:
            return []
        self._wakeup.drain()
        fresh = []
        now = clock()
        while self._connected:
            index, made = self._connected.popleft()
            self._connecting.pop(index, None)
            health = self._nodes.health[index]
            if isinstance(made, ConnectError):
                health.record_failure(str(made), now, lasting=made.lasting)
                continue
            health.was_connected = True
            health.record_success()
            self._attach(index, made, now)
            fresh.append(index)
        return fresh

    def _attach(self, index: int, connection: NodeConnection, now: float) -> None:
        old = self.by_node[index]
        if old is not None and not old.is_overdue(now, self._nodes.node_timeout):
            connection.close()
            return
        if old is not None:
            self._retire(index, old, now)
        self.by_node[index] = connection
        self._index_of[connection.fd] = index
        self._poller.register(connection.fd, READ)

    def _retire(self, index: int, connection: NodeConnection, now: float) -> None:
        """
        Use a connection no more, and keep it open for one longest lease.

        It may lead nowhere, or to a stopped server that will execute its buffer, the release
        included.
        """
        self._detach(index, connection)
        self._defer_unanswered(index, connection)
        self._retired.append((now + self._nodes.max_ttl, connection))

    def _detach(self, index: int, connection: NodeConnection) -> None:
        self.by_node[index] = None
        self.complete = False
        del self._index_of[connection.fd]
        self._poller.unregister(connection.fd)

    def _defer_unanswered(
        self, index: int, connection: NodeConnection, keeps: Collection[PendingReply] = ()
    ) -> None:
        health = self._nodes.health[index]
        for entry in connection.pending:
            if entry.command.script is Script.RELEASE and entry not in keeps:
                health.defer(entry.command)

    def _discard_connected(self) -> None:
        # The closing thread and a connecting one may do this at the same time.
        with contextlib.suppress(IndexError):
            while True:
                _, made = self._connected.popleft()
                if isinstance(made, NodeConnection):
                    made.close()
