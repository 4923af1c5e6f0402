"""
Reads a node's bytes, and checks what they announce before they are parsed.

A header of a dozen bytes makes the parser allocate memory for billions of elements, with the
interpreter lock held: one faulty node would stop all threads of the process for seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import hiredis

_RECEIVE_SIZE = 65536

#: A reply with a whole register of a lock node is far below this.
MAX_ELEMENTS = 1_000_000
MAX_BYTES = 16 * 1024 * 1024

#: Our scripts reply with one list; a RESP3 push or the reply to HELLO may have nested lists.
MAX_DEPTH = 8

#: No connection of this package asks for push messages: wake-ups are lists (RESP2).
MAX_PUSHES = 1000

_LONGEST_TEXT = 4096
_LONGEST_NUMBER = 24

#: The maximum length of a line, by its first byte.
_LONGEST = dict.fromkeys(b"+-(", _LONGEST_TEXT) | dict.fromkeys(b":_#,$=!*~>%|", _LONGEST_NUMBER)

#: The number of elements that follow for each one announced.
_AGGREGATES = dict.fromkeys(b"*~>", 1) | dict.fromkeys(b"%|", 2)
_PUSH = ord(">")

#: A header with its number, or an element of one line.
_header = re.compile(
    rb"(?:[$=!*~>%|](-1|\d{1,22})|[:_#,][^\r\n]{0,23}|[+\-(][^\r\n]{0,4095})\r\n"
).match

_NONCE = "|".join(rf"{size}\r\n{'.' * size}" for size in (4, 5, 6, 3, 2, 7, 1, 8, 9))

#: The most common replies, to one command or to several: complete, and with no excessive length.
_common_reply = re.compile(
    rf"(?:\*(?:2\r\n\$(?:{_NONCE})\r\n\$1\r\n.|"
    rf"3\r\n\$(?:{_NONCE})\r\n\$1\r\nG\r\n\$16\r\n{'.' * 16}|"
    rf"4\r\n\$(?:{_NONCE})\r\n\$1\r\nP\r\n\$16\r\n{'.' * 16}\r\n:\d{{1,3}})\r\n)+".encode(),
    re.DOTALL,
).fullmatch


class GarbageError(Exception):
    """A node sent bytes that are no valid reply; the text gives the reason."""


class Framing:
    """
    Follows the bytes of one connection from header to header.

    It skips payloads, so any payload is accepted.
    """

    __slots__ = ("_elements", "_inside_reply", "_length", "_line", "_nested", "_payload", "_pushes")

    def __init__(self) -> None:
        # The beginning of an incomplete line, and the remaining bytes of a payload.
        self._line = b""
        self._payload = 0
        # The remaining elements of each open list; the elements and bytes that the whole reply has
        # announced.
        self._nested: list[int] = []
        self._elements = 0
        self._length = 0
        self._pushes = 0
        self._inside_reply = False

    def check(self, data: bytes) -> None:
        """
        Check the next bytes of the connection.

        Raises:
            GarbageError: no valid reply has such bytes; they must not be parsed.
        """
        if self._inside_reply or not _common_reply(data):
            self._follow(data)
            self._inside_reply = bool(self._nested or self._payload or self._line)

    def _follow(self, data: bytes) -> None:
        at = 0
        if self._payload:
            at = min(self._payload, len(data))
            self._payload -= at
            if self._payload:
                return
            self._end_element()
        if self._line:
            data, self._line = self._line + data, b""
        size = len(data)
        while at < size:
            header = _header(data, at)
            if header is None:
                self._line = _partial_line(data[at:])
                return
            kind, begin, at = data[at], at, header.end()
            announced = header[1]
            if announced is None or announced == b"-1":
                self._count_bytes(at - begin)
                self._end_element()
            elif kind in _AGGREGATES:
                self._begin(kind, int(announced) * _AGGREGATES[kind])
            else:
                self._count_bytes(int(announced))
                at += int(announced) + 2
                if at > size:
                    self._payload = at - size
                    return
                self._end_element()

    def _begin(self, kind: int, count: int) -> None:
        self._elements += count
        if self._elements > MAX_ELEMENTS:
            raise GarbageError(
                f"it announces {self._elements} elements; no reply has more than {MAX_ELEMENTS}"
            )
        if kind == _PUSH:
            self._pushes += 1
            if self._pushes > MAX_PUSHES:
                raise GarbageError(f"more than {MAX_PUSHES} unsolicited messages")
        if not count:
            self._end_element()
            return
        if len(self._nested) >= MAX_DEPTH:
            raise GarbageError(f"lists within lists, more than {MAX_DEPTH} deep")
        self._nested.append(count)

    def _count_bytes(self, count: int) -> None:
        self._length += count
        if self._length > MAX_BYTES:
            raise GarbageError(
                f"it announces {self._length} bytes; no reply has more than {MAX_BYTES}"
            )

    def _end_element(self) -> None:
        nested = self._nested
        while nested:
            nested[-1] -= 1
            if nested[-1]:
                return
            nested.pop()
        self._elements = self._length = 0


def _partial_line(line: bytes) -> bytes:
    """Return an incomplete line that may still become valid."""
    longest = _LONGEST.get(line[0])
    if longest is None:
        raise GarbageError(f"no reply begins with {line[:40]!r}")
    if len(line) > longest:
        raise GarbageError(f"a line of more than {longest} bytes: {line[:40]!r}")
    if b"\n" in line:
        raise GarbageError(f"no reply has the line {line[:40]!r}")
    return line


class ReplyReader:
    """Reads the replies on a socket for a thread that polls it."""

    def __init__(self, sock: Any) -> None:
        self._socket = sock
        self._framing = Framing()
        self._parser = hiredis.Reader()

    def read(self) -> Iterator[Any]:
        """
        Yield the replies that have come; none if a socket without blocking has nothing to give.

        Raises:
            OSError: the connection is broken, or the node closed it.
            GarbageError: the node sent anything else than replies.
        """
        more = True
        while more:
            try:
                data: bytes = self._socket.recv(_RECEIVE_SIZE)
            except OSError as exc:
                if would_block(exc):
                    return
                raise
            if not data:
                raise OSError("closed the connection")
            self._framing.check(data)
            self._parser.feed(data)
            try:
                while (reply := self._parser.gets()) is not False:
                    yield reply
            except (hiredis.ProtocolError, TypeError) as exc:  # a map may have a list as a key
                raise GarbageError(str(exc)) from exc
            # TLS hands out one record at a time, and a poll does not see what it has buffered.
            pending = getattr(self._socket, "pending", None)
            more = pending is not None and pending() > 0


def would_block(exc: OSError) -> bool:
    """Return whether a socket without blocking has nothing to give or takes nothing now."""
    # SSL sockets raise SSLWantReadError and SSLWantWriteError, which are not BlockingIOError.
    return isinstance(exc, BlockingIOError | InterruptedError) or (
        type(exc).__name__ in ("SSLWantReadError", "SSLWantWriteError")
    )
