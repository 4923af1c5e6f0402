"""
One connection to one node: bytes out, replies in, strictly first in first out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import hiredis

from celery_redlock.protocol import Command, Round, Script
from celery_redlock.transport.base import AckedNodes
from celery_redlock.transport.redis.framing import Framing, GarbageError

_RECEIVE_SIZE = 65536

#: Commands after which a key of ours may exist on a node that has not answered.
KEY_SETTING_SCRIPTS = (Script.ACQUIRE, Script.HEAL)

#: Commands that may be long.
_LARGE = (Script.WRITE_REGISTER, Script.READ_REGISTER)

#: A node that has stopped gets no more than this said, but for releases of what it may yet set.
_MAX_PENDING = 1000

#: What RESP3 servers say without being asked; hiredis before 3.2 has no name for it.
_PUSH: type = getattr(hiredis, "PushNotification", type(None))


class ConnectionBrokenError(Exception):
    """The connection is of no more use; the text says why."""


@dataclass(slots=True)
class PendingReply:
    """
    A command that this connection owes an answer to.

    Attributes:
        nonce: what the answer must echo.
        command: what was said.
        round: where the answer counts, while `exchange` is the one under way.
        exchange: number of the exchange that said it; 0 when nobody waits.
        sent_at: when.
        acked: where nodes are noted that have done it, if anybody wants to know.
    """

    nonce: bytes
    command: Command
    round: Round | None
    exchange: int
    sent_at: float
    acked: AckedNodes | None = None


class NodeConnection:
    """
    A connected, authenticated socket in non-blocking mode, with what it owes.

    The socket comes from redis-py's own connection object, which has done TLS, AUTH and HELLO; that
    object is kept, because closing it is its business.
    """

    __slots__ = (
        "_framing",
        "_outgoing",
        "_reader",
        "_redis_connection",
        "_settings",
        "_socket",
        "fd",
        "pending",
    )

    def __init__(self, connection: Any, sock: Any) -> None:
        sock.setblocking(False)
        self._redis_connection = connection
        self._socket = sock
        self._framing = Framing()
        self._reader = hiredis.Reader()
        self._outgoing = b""
        self.fd: int = sock.fileno()
        self.pending: deque[PendingReply] = deque()
        self._settings: tuple[PendingReply, set[str | int]] | None = None

    @property
    def has_unsent(self) -> bool:
        """Tell whether bytes wait because the node does not read."""
        return bool(self._outgoing)

    def is_overdue(self, now: float, timeout: float) -> bool:
        """Tell whether the oldest unanswered command has waited longer than `patience` seconds."""
        return bool(self.pending) and now - self.pending[0].sent_at > timeout

    def is_full_for(self, command: Command) -> bool:
        """
        Tell whether a command is too much for a node that has long been silent.

        What undoes a command that sits in the node's buffer is always taken, once: it has to run
        behind it, and only this connection keeps the order. What may be long is taken only while
        the node's buffer takes it, so that it does not fill this process instead.
        """
        if command.script in _LARGE and self.has_unsent:
            return True
        if len(self.pending) < _MAX_PENDING:
            return False
        if command.script is not Script.RELEASE:
            return True
        oldest = self.pending[0]
        if self._settings is None or self._settings[0] is not oldest:
            owners = {
                e.command.args[0] for e in self.pending if e.command.script in KEY_SETTING_SCRIPTS
            }
            self._settings = (oldest, owners)
        owner, owners = command.args[0], self._settings[1]
        if owner not in owners:
            return True
        owners.remove(owner)
        return False

    def send(self, data: bytes) -> None:
        """Queue bytes and pass on what the socket takes now."""
        if self._outgoing:
            self._outgoing += data
            self.flush()
            return
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as exc:
            if not _would_block(exc):
                raise ConnectionBrokenError(_describe(exc)) from exc
            sent = 0
        if sent < len(data):
            self._outgoing = data[sent:]

    def flush(self) -> None:
        """Pass on waiting bytes."""
        waiting, self._outgoing = self._outgoing, b""
        if waiting:
            self.send(waiting)

    def receive(self) -> Iterator[tuple[PendingReply, Any]]:
        """
        Read what has come and match it with what was said, in order.

        Replies are lists of our scripts' fields without the nonce, or exceptions from the server.

        Raises:
            ConnectionBrokenError: the node closed, or said something that was not asked for.
        """
        reader = self._reader
        try:
            data = self._socket.recv(_RECEIVE_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            if _would_block(exc):
                return
            raise ConnectionBrokenError(_describe(exc)) from exc
        if not data:
            raise ConnectionBrokenError("closed the connection")
        while data:
            try:
                self._framing.check(data)
            except GarbageError as exc:
                raise ConnectionBrokenError(f"answered garbage: {exc}") from exc
            reader.feed(data)
            yield from self._replies()
            # TLS hands out one record at a time, and a poll does not see what it has buffered.
            more = getattr(self._socket, "pending", None)
            data = self._socket.recv(_RECEIVE_SIZE) if more is not None and more() else b""

    def _replies(self) -> Iterator[tuple[PendingReply, Any]]:
        while True:
            try:
                reply = self._reader.gets()
            except (hiredis.ProtocolError, TypeError) as exc:  # a map may have a list as a key
                raise ConnectionBrokenError(f"answered garbage: {exc}") from exc
            if reply is False:
                return
            if isinstance(reply, _PUSH):
                continue
            if not self.pending:
                raise ConnectionBrokenError(f"answered without being asked: {str(reply)[:80]}")
            pending = self.pending.popleft()
            if isinstance(reply, hiredis.ReplyError):
                yield pending, reply
            elif isinstance(reply, list) and reply and reply[0] == pending.nonce:
                yield pending, reply[1:]
            else:
                raise ConnectionBrokenError(f"answered another question: {str(reply)[:80]}")

    def close(self) -> None:
        """Close the connection."""
        self.pending.clear()
        self._redis_connection.disconnect()


def _would_block(exc: OSError) -> bool:
    # SSL sockets raise SSLWantReadError and SSLWantWriteError, which are not BlockingIOError.
    return type(exc).__name__ in ("SSLWantReadError", "SSLWantWriteError")


def _describe(exc: OSError) -> str:
    return f"{type(exc).__name__}: {exc.strerror or exc}"
