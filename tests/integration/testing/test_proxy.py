"""The proxy breaks connections exactly as asked, and mends them again."""

from __future__ import annotations

import os
import select
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from celery_redlock.testing import TcpProxy
from celery_redlock.testing.proxy import GARBAGE
from tests.support.leaks import nothing_left
from tests.support.waiting import TIMEOUT, wait_until


class EchoServer(socketserver.ThreadingTCPServer):
    """Answers every chunk with itself and remembers all bytes it ever received, in order."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Echo)
        self.received = bytearray()
        self.connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    def hang_up(self) -> None:
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.hang_up()
        self.server_close()


class Echo(socketserver.BaseRequestHandler):
    server: EchoServer

    def handle(self) -> None:
        self.server.connections.append(self.request)
        with suppress(OSError):
            while data := self.request.recv(65536):
                self.server.received += data
                self.request.sendall(data)


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with closing(EchoServer()) as server:
        yield server


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[TcpProxy]:
    with closing(TcpProxy([server.server_address])) as proxy:
        yield proxy


@contextmanager
def connect(proxy: TcpProxy, index: int = 0) -> Iterator[socket.socket]:
    with socket.create_connection(proxy.addresses[index], timeout=TIMEOUT) as client:
        yield client


def receive(client: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (chunk := client.recv(size - len(data))):
        data += chunk
    return bytes(data)


def ask(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return receive(client, len(data))


def is_silent(client: socket.socket) -> bool:
    """Whether nothing at all, an end included, can be read now."""
    return select.select([client], [], [], 0) == ([], [], [])


def is_reset(client: socket.socket) -> bool:
    try:
        client.sendall(b"x")
        return client.recv(1) == b""
    except OSError:
        return True


def test_bytes_pass_in_both_directions(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        assert ask(client, b"hello") == b"hello"


def test_more_bytes_than_any_buffer_keeps_pass_in_order(proxy: TcpProxy) -> None:
    data = os.urandom(8 * 1024 * 1024)
    with connect(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        assert receive(client, len(data)) == data
        sender.join()


def test_a_half_closed_connection_still_gets_its_replies(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert receive(client, 100) == b"last words"


def test_the_client_sees_the_server_hang_up(proxy: TcpProxy, server: EchoServer) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        server.hang_up()
        assert client.recv(1) == b""


def test_a_dead_server_shows_as_a_reset(proxy: TcpProxy, server: EchoServer) -> None:
    server.close()
    # The reset may come before the client's kernel has told it that it is connected.
    with pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)


def test_nodes_are_broken_independently(server: EchoServer) -> None:
    with closing(TcpProxy([server.server_address, server.server_address])) as proxy:
        proxy.partition(0)
        with connect(proxy, 1) as client:
            assert ask(client, b"hello") == b"hello"


def test_a_partition_keeps_connections_open_and_silent(proxy: TcpProxy, server: EchoServer) -> None:
    with connect(proxy) as client, connect(proxy) as marker:
        ask(client, b"before")
        ask(marker, b"before")
        proxy.partition(0)
        client.sendall(b"during")
        proxy.partition(0)  # returns when the loop has run once more
        assert is_silent(client)
        assert bytes(server.received) == b"beforebefore"


def test_bytes_sent_into_a_partition_arrive_when_it_heals(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        ask(client, b"before")
        proxy.partition(0)
        client.sendall(b"during")
        proxy.heal(0)
        assert receive(client, 6) == b"during"


def test_a_new_connection_across_a_partition_gets_its_answer_when_it_heals(
    proxy: TcpProxy, server: EchoServer
) -> None:
    proxy.partition(0)
    with connect(proxy) as client:
        client.sendall(b"anybody there?")
        proxy.partition(0)
        assert bytes(server.received) == b""
        proxy.heal(0)
        assert receive(client, 14) == b"anybody there?"


def test_a_partition_fills_the_senders_buffer_in_the_end(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        ask(client, b"before")
        proxy.partition(0)
        client.settimeout(1.0)
        with pytest.raises(TimeoutError):
            client.sendall(bytes(64 * 1024 * 1024))


def test_refusing_resets_open_connections(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        proxy.refuse(0)
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_refusing_refuses_new_connections(proxy: TcpProxy) -> None:
    proxy.refuse(0)
    with pytest.raises(ConnectionRefusedError), connect(proxy):
        pass


def test_a_refusing_node_is_reached_at_its_old_address_when_healed(proxy: TcpProxy) -> None:
    proxy.refuse(0)
    proxy.heal(0)
    with connect(proxy) as client:
        assert ask(client, b"hello") == b"hello"


def test_resetting_ends_open_connections_and_no_others(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        proxy.reset(0)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with connect(proxy) as client:
        assert ask(client, b"hello") == b"hello"


def test_garbage_answers_an_open_connection(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        ask(client, b"hello")
        proxy.garbage(0)
        client.sendall(b"hello")
        assert receive(client, len(GARBAGE)) == GARBAGE


def test_garbage_answers_a_new_connection_with_the_bytes_given(proxy: TcpProxy) -> None:
    proxy.garbage(0, b"\x00\xff")
    with connect(proxy) as client:
        client.sendall(b"hello")
        assert receive(client, 2) == b"\x00\xff"


def test_garbage_lets_nothing_through_to_the_server(proxy: TcpProxy, server: EchoServer) -> None:
    proxy.garbage(0)
    with connect(proxy) as client:
        client.sendall(b"hello")
        receive(client, len(GARBAGE))
    proxy.heal(0)
    with connect(proxy) as client:
        ask(client, b"after")
    assert bytes(server.received) == b"after"


def test_a_connection_that_got_garbage_is_reset_when_healed(proxy: TcpProxy) -> None:
    proxy.garbage(0)
    with connect(proxy) as client:
        client.sendall(b"hello")
        receive(client, len(GARBAGE))
        proxy.heal(0)
        assert is_reset(client)


def test_delay_adds_to_each_direction(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        proxy.delay(0, 0.1)
        start = time.monotonic()
        ask(client, b"hello")
        assert time.monotonic() - start >= 0.2


def test_bytes_keep_their_order_when_the_delay_shrinks(proxy: TcpProxy, server: EchoServer) -> None:
    with connect(proxy) as client:
        ask(client, b"zero ")
        proxy.delay(0, 3600, only="requests")
        client.sendall(b"first ")
        wait_until(lambda: proxy_has_read(proxy), message="the first bytes are on their way")
        proxy.delay(0, 0.0)
        client.sendall(b"second")
        wait_until(
            lambda: len(proxy._loop.timers) == 2, message="the second bytes queue behind them"
        )
        proxy.heal(0)
        assert receive(client, 12) == b"first second"


def proxy_has_read(proxy: TcpProxy) -> bool:
    return bool(proxy._loop.timers)


def test_healing_delivers_delayed_bytes_at_once(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        ask(client, b"before")
        proxy.delay(0, 3600)
        client.sendall(b"delayed")
        wait_until(lambda: proxy_has_read(proxy), message="the bytes are on their way")
        proxy.heal(0)
        assert receive(client, 7) == b"delayed"


def test_a_partition_holds_delayed_bytes_beyond_their_time(
    proxy: TcpProxy, server: EchoServer
) -> None:
    with connect(proxy) as client:
        ask(client, b"before")
        proxy.delay(0, 0.05)
        proxy.partition(0)
        client.sendall(b"late")
        due = time.monotonic() + 0.1
        wait_until(lambda: time.monotonic() > due, message="their time has passed")
        proxy.partition(0)
        assert bytes(server.received) == b"before"


def test_closing_ends_connections_thread_and_sockets(server: EchoServer) -> None:
    with nothing_left():
        proxy = TcpProxy([server.server_address])
        proxy.garbage(0)
        with connect(proxy) as client:
            client.sendall(b"hello")
            receive(client, len(GARBAGE))
            proxy.close()
            assert is_reset(client)


def test_closing_twice_is_fine(proxy: TcpProxy) -> None:
    proxy.close()
    proxy.close()


def test_a_forked_child_does_not_keep_the_parents_ports_open(
    proxy: TcpProxy, server: EchoServer
) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            proxy.reset_after_fork()
            os.close(writer)
            os.read(reader, 1)
        finally:
            os._exit(0)
    os.close(reader)
    try:
        with connect(proxy) as client:
            assert ask(client, b"hello") == b"hello"
        proxy.refuse(0)
        wait_until(lambda: refuses(proxy), message="the port is closed although the child lives")
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def refuses(proxy: TcpProxy) -> bool:
    try:
        with connect(proxy):
            return False
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False  # it came while the port was being closed
