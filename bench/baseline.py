"""
The floor: the same scripts over bare sockets, by a loop that does nothing else.

It takes the lock and releases it on N nodes and returns at a quorum each time, as the client does.
It has none of what makes the client safe: no time-outs, no reconnecting, no early verdict other
than success, no second round for the token, no trust in time, no threads, no forks.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import hiredis

from celery_redlock.protocol.commands import SHA, SOURCE, Script
from celery_redlock.protocol.keys import ANY_PAUSE, GUARD_KEY, fence_key

_PATIENCE_MS = 1000


class Floor:
    """A quorum lock without safety; a context manager."""

    def __init__(self, urls: Sequence[str], key: str, *, ttl_ms: int, quarantine_ms: int) -> None:
        self._needed = len(urls) // 2 + 1
        self._keys = (key, fence_key(key))
        self._ttl_ms = ttl_ms
        self._quarantine_ms = quarantine_ms
        self._nonces = itertools.count(1)
        self._poller = select.poll()
        self._sockets: list[socket.socket] = []
        self._by_descriptor: dict[int, tuple[socket.socket, Any]] = {}
        for url in urls:
            node = urlsplit(url)
            sock = socket.create_connection((node.hostname, node.port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(sock)
            reader = hiredis.Reader()
            for kind in (Script.ACQUIRE, Script.RELEASE):
                sock.sendall(hiredis.pack_command(("SCRIPT", "LOAD", SOURCE[kind])))
                while reader.gets() is False:
                    reader.feed(sock.recv(65536))
            self._by_descriptor[sock.fileno()] = (sock, reader)
            self._poller.register(sock, select.POLLIN)

    def __enter__(self) -> Floor:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._sockets:
            sock.close()

    def acquire_and_release(self) -> None:
        """Do what is measured, once."""
        owner = os.urandom(16).hex()
        granted = self._send(
            Script.ACQUIRE,
            (*self._keys, GUARD_KEY, ANY_PAUSE),
            (owner, self._ttl_ms, time.time_ns() // 1000, self._quarantine_ms),
            b"G",
        )
        token = max(int(reply[2]) for reply in granted)
        self._send(Script.RELEASE, self._keys, (owner, token, 0), b"A")

    def _send(
        self, kind: Script, keys: tuple[str, ...], args: tuple[str | int, ...], wanted: bytes
    ) -> list[list[bytes]]:
        nonce = b"%x" % next(self._nonces)
        data = hiredis.pack_command(("EVALSHA", SHA[kind], len(keys), *keys, nonce, *args))
        for sock in self._sockets:
            sock.send(data)
        replies: list[list[bytes]] = []
        while len(replies) < self._needed:
            ready = self._poller.poll(_PATIENCE_MS)
            if not ready:
                raise TimeoutError("the nodes do not answer")
            for descriptor, _ in ready:
                sock, reader = self._by_descriptor[descriptor]
                reader.feed(sock.recv(65536))
                while (reply := reader.gets()) is not False:
                    if reply[0] != nonce:
                        continue
                    if reply[1] != wanted:
                        raise RuntimeError(f"a node answered {reply[1:]} to {kind}")
                    replies.append(reply)
        return replies
