"""
One connection to one node: bytes out, replies in, strictly first in, first out.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import hiredis

from celery_redlock.protocol.commands import NOT_TEXT, SHA, SOURCE, Command, Script
from celery_redlock.protocol.mastership import Master
from celery_redlock.protocol.rounds import Round
from celery_redlock.transport.base import VoteReceiver
from celery_redlock.transport.redis.framing import GarbageError, ReplyReader, would_block

_nonces = itertools.count(1)

#: Scripts whose commands may be large.
_LARGE = (Script.WRITE_REGISTER, Script.READ_REGISTER)

#: Maximum unanswered commands of a connection. Beyond it, only the releases of keys that an
#: unanswered command may yet set are sent.
_MAX_PENDING = 1000

#: The type of unsolicited RESP3 messages; hiredis before 3.2 has none.
_PUSH: type = getattr(hiredis, "PushNotification", type(None))


class ConnectionBrokenError(Exception):
    """The connection can be used no more; the text gives the reason."""


@dataclass(slots=True)
class PendingReply:
    """
    A command whose reply has not come.

    Attributes:
        command: the command.
        sent_at: when the sending began.
        asked_at: since when the reply is awaited: this process may have paused while it sent.
        round: the round in which the reply counts, while its `exchange` is under way.
        exchange: number of the exchange that sent the command; 0 if no caller waits for the reply.
        receiver: gets the reply, whenever it comes; None if nothing does.
        nonce: what the reply must echo.
    """

    command: Command
    sent_at: float
    round: Round | None = None
    exchange: int = 0
    receiver: VoteReceiver | None = None
    nonce: bytes = field(default_factory=lambda: b"%x" % next(_nonces))
    asked_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.asked_at = self.sent_at

    def packed(self, *, in_full: bool = False) -> bytes:
        """Return the bytes to send; in full, the node need not know the script."""
        command, script = self.command, self.command.script
        head = ("EVAL", SOURCE[script]) if in_full else ("EVALSHA", SHA[script])
        # Only text: a signal handler that raises while hiredis converts a number crashes the
        # process.
        args = [word if isinstance(word, str) else str(word) for word in command.args]
        words: Any = (*head, str(len(command.keys)), *command.keys, self.nonce, *args)
        try:
            packed: bytes = hiredis.pack_command(words)
        except UnicodeEncodeError:
            words = tuple(
                word.encode(errors=NOT_TEXT) if isinstance(word, str) else word for word in words
            )
            packed = hiredis.pack_command(words)
        return packed


class NodeConnection:
    """
    A connected, authenticated socket in non-blocking mode, with its unanswered commands.

    The socket comes from redis-py's own connection object, which has done TLS, AUTH and HELLO and
    is kept to close it.

    Attributes:
        fd: the socket's descriptor.
        pending: the unanswered commands, oldest first.
        master: whom the socket leads to, for a node that can fail over; else None.
    """

    def __init__(self, connection: Any, sock: Any, master: Master | None = None) -> None:
        sock.setblocking(False)
        self._redis_connection = connection
        self._socket = sock
        self._replies = ReplyReader(sock)
        self._outgoing = b""
        self.fd: int = sock.fileno()
        self.pending: deque[PendingReply] = deque()
        self.master = master
        self._settings: tuple[PendingReply, set[str | int]] | None = None

    @property
    def has_unsent(self) -> bool:
        """Return whether bytes wait because the node does not read."""
        return bool(self._outgoing)

    def is_overdue(self, now: float, timeout: float) -> bool:
        """Return whether the oldest unanswered command has waited longer than `timeout` seconds."""
        return bool(self.pending) and now - self.pending[0].asked_at > timeout

    def is_full_for(self, command: Command) -> bool:
        """
        Return whether a command is too much for a node that has long been silent.

        The release of a command that waits in the node's buffer is always accepted, once: it has to
        run behind that command, and only this connection keeps the order. A large command is
        accepted only while the socket takes all bytes, so that none pile up in this process.
        """
        if command.script in _LARGE and self.has_unsent:
            return True
        if len(self.pending) < _MAX_PENDING:
            return False
        if command.script is not Script.RELEASE:
            return True
        oldest = self.pending[0]
        if self._settings is None or self._settings[0] is not oldest:
            owners = {entry.command.args[0] for entry in self.pending if entry.command.sets_keys}
            self._settings = (oldest, owners)
        owner, owners = command.args[0], self._settings[1]
        if owner not in owners:
            return True
        owners.remove(owner)
        return False

    def send(self, data: bytes) -> None:
        """Queue bytes and send what the socket takes now."""
        if self._outgoing:
            self._outgoing += data
            self.flush()
            return
        try:
            sent = self._socket.send(data)
        except OSError as exc:
            if not would_block(exc):
                raise ConnectionBrokenError(_describe(exc)) from exc
            sent = 0
        if sent < len(data):
            self._outgoing = data[sent:]

    def flush(self) -> None:
        """Send waiting bytes."""
        waiting, self._outgoing = self._outgoing, b""
        if waiting:
            self.send(waiting)

    def receive(self) -> Iterator[tuple[PendingReply, Any]]:
        """
        Read the bytes that have come and match replies with commands, in order.

        Replies are lists of a script's fields without the nonce, or errors of the server.

        Raises:
            ConnectionBrokenError: the node closed the connection, or sent anything else than the
                reply to the oldest command.
        """
        try:
            for reply in self._replies.read():
                if isinstance(reply, _PUSH):
                    continue
                if not self.pending:
                    raise ConnectionBrokenError(f"sent a reply to no command: {str(reply)[:80]}")
                pending = self.pending.popleft()
                if isinstance(reply, hiredis.ReplyError):
                    yield pending, reply
                elif isinstance(reply, list) and reply and reply[0] == pending.nonce:
                    yield pending, reply[1:]
                else:
                    raise ConnectionBrokenError(f"replied to another command: {str(reply)[:80]}")
        except GarbageError as exc:
            raise ConnectionBrokenError(f"answered garbage: {exc}") from exc
        except OSError as exc:
            raise ConnectionBrokenError(_describe(exc)) from exc

    def close(self) -> None:
        """Close the connection."""
        self.pending.clear()
        self._redis_connection.disconnect()


def _describe(exc: OSError) -> str:
    # An error of `ReplyReader` has no number, and a text that needs no name.
    text = f"{type(exc).__name__}: {exc.strerror or exc}"
    return text if exc.errno is not None else str(exc) or text
