"""
The kind of node that is a server of Redis or Valkey.

It is armed on one connection, and read in small steps, so that its other clients hardly notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from celery_redlock.protocol.commands import (
    ARM_SOURCE,
    NOT_TEXT,
    SOURCE,
    Command,
    Script,
    inspect,
    read_reply,
)
from celery_redlock.protocol.keys import EPOCH_KEY, GUARD_KEY, wait_queue_key
from celery_redlock.protocol.mastership import Master
from celery_redlock.protocol.votes import KeyStates, Vote
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.base import SCANNED_AT_ONCE, NodeSession, checked_states
from celery_redlock.transport.redis.masters import connector_to

#: KEYS are wait queues. Returns the length of each, and its first score as a text.
_QUEUES = """
local found = {}
for i, queue in ipairs(KEYS) do
  local length = redis.pcall('ZCARD', queue)
  local first = redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES')
  found[i] = {type(length) == 'number' and length or 0, first[2] or '0'}
end
return found
"""

#: KEYS[1] is a wait queue. A script, because its replies have the same form in all protocols.
_WAITERS = """
local found = redis.pcall('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
return found.err and {} or found
"""


class ServerSession(NodeSession):
    """A server: a client's locks do not queue behind what is read here."""

    def __init__(self, node: NodeAddress, timeout: float) -> None:
        self._connector = connector_to(node, timeout)
        self._connection: Any = None
        self._master: Master | None = None

    def open(self) -> None:
        if self._connection is None:
            self._master = self._connector.master()
            self._connection, info = self._connector.open(self._master)
            self.run_id = info.get("run_id") if info else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()

    def arm(self, mode: str) -> str:
        self.open()
        self._connection.send_command("EVAL", ARM_SOURCE, 1, GUARD_KEY, mode)
        answer = self._connection.read_response()
        answer = answer.decode() if isinstance(answer, bytes) else str(answer)
        if answer == "armed" and self._master is not None and self._master.epoch:
            # Otherwise its clients take it for one that has been promoted since.
            self._connection.send_command("SET", EPOCH_KEY, self._master.epoch)
            self._connection.read_response()
        return answer

    def size(self) -> int:
        return int(self._run("DBSIZE"))

    def scan(self, match: str) -> Iterator[Sequence[bytes]]:
        cursor = b"0"
        while True:
            cursor, names = self._run("SCAN", cursor, "MATCH", match, "COUNT", SCANNED_AT_ONCE)
            yield names
            if cursor == b"0":
                return

    def states(self, node_keys: tuple[str, ...]) -> tuple[KeyStates, Sequence[tuple[int, float]]]:
        keys = inspect(node_keys).keys
        queues = [wait_queue_key(node_key) for node_key in node_keys]
        commands = [
            ("EVAL", SOURCE[Script.INSPECT], len(keys), *keys, "list"),
            ("EVAL", _QUEUES, len(queues), *queues),
        ]
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        states, found = self._reply(), self._reply()
        waiting = [(length, float(first)) for length, first in found]
        return checked_states(read_reply(states[1:])), waiting

    def waiters(self, node_key: str) -> dict[str, float]:
        found = self._run("EVAL", _WAITERS, 1, wait_queue_key(node_key))
        return {
            name.decode(errors="replace"): float(score)
            for name, score in zip(found[0::2], found[1::2], strict=True)
        }

    def execute(self, command: Command) -> Vote:
        words = (len(command.keys), *command.keys, "release", *command.args)
        source = SOURCE[command.script]
        reply = self._run("EVAL", source, *(str(word).encode(errors=NOT_TEXT) for word in words))
        return read_reply(reply[1:])

    def _run(self, *command: str | bytes | int) -> Any:
        self._connection.send_command(*command)
        return self._reply()

    def _reply(self) -> Any:
        return self._connection.read_response(disable_decoding=True)


def probe_server(node: NodeAddress, timeout: float) -> str | None:
    """Connect as a client does; return the server's run id, if it shows one."""
    connection, run_id = connector_to(node, timeout).connect(awaited=True)
    connection.close()
    return run_id
