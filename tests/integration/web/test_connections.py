"""Connections to the page: whoever holds them open without a request keeps no viewer out."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from celery_redlock.web import server
from celery_redlock.web.server import PageConnection
from tests.integration.web.site import Site, served
from tests.support.nodes import Nodes
from tests.support.waiting import TIMEOUT, wait_until

MOST = 10
TOKEN = "a-token-of-the-test"
REFUSED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageConnection, "most", MOST)
    monkeypatch.setattr(server, "REQUEST_WITHIN", 10 * TIMEOUT)


@contextlib.contextmanager
def opened(site: Site, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", site.port), TIMEOUT))
            for _ in range(count)
        ]


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1000) == b""
    except ConnectionError:
        return True


def test_those_that_have_waited_longest_without_a_request_are_closed(site: Site) -> None:
    with opened(site, 3 * MOST) as sockets:
        assert is_closed(sockets[0])
        assert site.ask("/").status == 200
        wait_until(lambda: len(site.server.server_state.connections) <= MOST)


def test_a_viewer_stays_whoever_else_connects(site: Site) -> None:
    with site.viewer() as looks:
        next(looks)
        with opened(site, 3 * MOST) as sockets:
            assert is_closed(sockets[0])
            for _ in range(3):
                next(looks)


def test_a_request_without_access_is_the_last_of_its_connection(nodes: Nodes) -> None:
    with served(nodes.client(), token=TOKEN) as site, opened(site, 1) as (sock,):
        sock.sendall(REFUSED * 100)
        answers = b""
        with contextlib.suppress(ConnectionError):
            while answer := sock.recv(100_000):
                answers += answer
    assert answers.count(b"HTTP/1.1 401") == 1
    assert b"connection: close" in answers.lower()


def test_a_client_that_keeps_its_connection_can_log_in(nodes: Nodes) -> None:
    with served(nodes.client(), token=TOKEN) as site:
        client = HTTPConnection("127.0.0.1", site.port, timeout=TIMEOUT)
        client.request("GET", f"/?token={TOKEN}")
        with client.getresponse() as answer:
            assert answer.status == 303
            answer.read()
        client.request("GET", "/", headers={"Cookie": f"{site.access.cookie}={TOKEN}"})
        with client.getresponse() as answer:
            assert answer.status == 200
        client.close()


def test_a_viewer_has_one_connection_for_many_requests(nodes: Nodes) -> None:
    with served(nodes.client(), token=TOKEN) as site, opened(site, 1) as (sock,):
        cookie = f"Cookie: {site.access.cookie}={TOKEN}".encode()
        shown = b"HEAD / HTTP/1.1\r\nHost: localhost\r\n" + cookie + b"\r\n\r\n"
        for _ in range(3):
            sock.sendall(shown)
            assert b"HTTP/1.1 200" in sock.recv(100_000)


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: loc", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET"]
)
def test_a_connection_without_a_whole_request_in_time_is_closed(
    site: Site, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_WITHIN", 0.1)
    with opened(site, 1) as (sock,):
        sock.sendall(sent)
        while not is_closed(sock):
            pass
