"""Sentinels in this process, which reply as a test wants it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator

import hiredis

LOOPBACK = "127.0.0.1"


def named(port: int = 1, epoch: int = 0) -> list[bytes]:
    """Return the reply of one of three Sentinels that names a server, in one piece."""
    fields = {"ip": LOOPBACK, "port": port, "config-epoch": epoch, "num-other-sentinels": 2}
    words = [str(word) for field in {**fields, "flags": "master"}.items() for word in field]
    return [hiredis.pack_command(tuple(words))]


class FakeSentinel:
    """
    A Sentinel that replies what `reply` returns to each question about a master, piece by piece.

    It gets the connection on which the question came.

    Attributes:
        port: on which it listens.
        asked: how often it was asked.
        connections: that clients have with it.
        accepted: how many connections clients have made.
    """

    def __init__(self) -> None:
        self.reply: Callable[[socket.socket], Iterable[bytes]] = lambda _: named()
        self.asked = self.accepted = 0
        self.connections: set[socket.socket] = set()
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections, and take no more."""
        for one in (self._listener, *self.connections):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        self.connections.add(connection)
        self.accepted += 1
        reader = hiredis.Reader()
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(4096):
                reader.feed(data)
                while (words := reader.gets()) is not False:
                    is_question = words[0] == b"SENTINEL"
                    self.asked += is_question
                    for piece in self.reply(connection) if is_question else [b"+OK\r\n"]:
                        connection.sendall(piece)
        self.connections.discard(connection)


@contextlib.contextmanager
def fake_sentinels(count: int = 3) -> Iterator[list[FakeSentinel]]:
    """Run Sentinels for a block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(FakeSentinel())) for _ in range(count)]


def url_of(sentinels: list[FakeSentinel], group: str = "locks") -> str:
    """Return the URL of a group that these Sentinels watch."""
    return f"redis+sentinel://{','.join(f'{LOOPBACK}:{one.port}' for one in sentinels)}/{group}"
