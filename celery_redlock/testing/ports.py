"""Loopback ports that stay reserved while no server listens on them."""

from __future__ import annotations

import socket
import sys

LOOPBACK = "127.0.0.1"


class ReservedPort:
    """
    A loopback port that the kernel has chosen, and gives to no other process until `release`.

    The reserving socket is bound and never listens, so the kernel refuses connections, while a
    server that sets `SO_REUSEADDR` (Redis and Valkey do) can bind and listen beside it. Without it,
    the kernel could give the port of a killed server to another process before the server starts
    again, or to a client's own outgoing connection, which would then be connected to itself.

    Only Linux lets two sockets share a port in this way; elsewhere the number is only likely free.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOOPBACK, 0))
        self.number: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self._socket.close()

    def listen(self) -> socket.socket:
        """Return a non-blocking socket that listens on this port."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, self.number))
        listener.listen(511)
        listener.setblocking(False)
        return listener

    def release(self) -> None:
        """Release the port."""
        self._socket.close()
