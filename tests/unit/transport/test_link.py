"""Replies are matched strictly in order; whatever else a node says ends its connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import hiredis
import pytest

from celery_redlock.protocol import Command, acquire, extend, fetch, look, release, store
from celery_redlock.transport.health import NodeHealth
from celery_redlock.transport.link import Link, LinkBrokenError, Pending

COMMAND = acquire(("key",), "us", 1000, 1, 0)


@pytest.fixture
def ends() -> Iterator[tuple[Link, socket.socket]]:
    ours, theirs = socket.socketpair()
    link = Link(SimpleNamespace(disconnect=ours.close), ours)
    yield link, theirs
    link.close()
    theirs.close()


def said(link: Link, *nonces: bytes, command: Command = COMMAND) -> None:
    link.pending.extend(Pending(nonce, command, None, 1, 0.0) for nonce in nonces)


def answer(*fields: bytes) -> bytes:
    words: Any = fields
    return bytes(hiredis.pack_command(words))


def test_answers_are_matched_first_in_first_out(ends: tuple[Link, socket.socket]) -> None:
    link, node = ends
    said(link, b"1", b"2")
    node.sendall(answer(b"1", b"G", b"7") + answer(b"2", b"A"))
    assert [(pending.nonce, fields) for pending, fields in link.receive()] == [
        (b"1", [b"G", b"7"]),
        (b"2", [b"A"]),
    ]


def test_an_answer_may_come_in_pieces(ends: tuple[Link, socket.socket]) -> None:
    link, node = ends
    said(link, b"1")
    whole = answer(b"1", b"A")
    node.sendall(whole[:5])
    assert list(link.receive()) == []
    node.sendall(whole[5:])
    assert len(list(link.receive())) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (answer(b"another", b"G", b"7"), "another question"),
        (b"+OK\r\n", "another question"),
        (b"$-1\r\n", "another question"),
        (b"*0\r\n", "another question"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "garbage"),
        (b"*2147483647\r\n", "garbage: it announces 2147483647 elements"),
        (b"%1\r\n*0\r\n+a list as a key\r\n", "garbage"),
        (answer(b"1", b"A") + answer(b"1", b"A"), "without being asked"),
    ],
)
def test_whatever_else_is_said_breaks_the_link(
    ends: tuple[Link, socket.socket], words: bytes, says: str
) -> None:
    link, node = ends
    said(link, b"1")
    node.sendall(words)
    with pytest.raises(LinkBrokenError, match=says):
        list(link.receive())


def test_an_error_from_the_server_is_an_answer(ends: tuple[Link, socket.socket]) -> None:
    link, node = ends
    said(link, b"1")
    node.sendall(b"-READONLY You can't write\r\n")
    ((_, reply),) = link.receive()
    assert isinstance(reply, hiredis.ReplyError)


def test_a_closed_connection_breaks_the_link(ends: tuple[Link, socket.socket]) -> None:
    link, node = ends
    node.close()
    with pytest.raises(LinkBrokenError, match="closed the connection"):
        list(link.receive())


def test_what_the_socket_does_not_take_is_kept_in_order(ends: tuple[Link, socket.socket]) -> None:
    link, node = ends
    pieces = [bytes([65 + number]) * 100_000 for number in range(20)]
    for piece in pieces:
        link.send(piece)
    assert link.clogged
    arrived = b""
    while len(arrived) < 2_000_000:
        arrived += node.recv(65536)
        link.flush()
    assert b"".join(pieces) == arrived
    assert not link.clogged


def test_a_silent_node_is_told_no_more_than_what_undoes(ends: tuple[Link, socket.socket]) -> None:
    link, _ = ends
    said(link, *(b"%d" % number for number in range(1000)))
    assert link.refuses(COMMAND)
    assert link.refuses(extend(("key",), "us", 1000, 1))
    assert link.refuses(release(("key",), "somebody else", 1))
    assert not link.refuses(release(("key",), "us", 1))
    assert link.refuses(release(("key",), "us", 1))
    assert link.refuses(look(("key",)))
    assert link.refuses(store("register", 1, {}))


def test_what_may_be_long_does_not_pile_up_before_a_node_that_does_not_read(
    ends: tuple[Link, socket.socket],
) -> None:
    link, _ = ends
    assert not link.refuses(store("register", 1, {}))
    while not link.clogged:
        link.send(b"x" * 100_000)
    assert link.refuses(store("register", 1, {}))
    assert link.refuses(fetch("register", 1))
    assert not link.refuses(release(("key",), "us", 1))


def test_a_node_that_keeps_failing_is_left_out_for_longer_and_longer() -> None:
    health = NodeHealth("node")
    now, pauses = 0.0, []
    for _ in range(10):
        health.failed("refused", now)
        start = now
        while health.paused(now):
            now += 0.001
        pauses.append(now - start)
    assert 0.024 < pauses[0] < 0.052
    assert all(0.99 < pause < 2.01 for pause in pauses[6:])
    health.works()
    assert (health.paused(now), health.reason) == (False, None)


def test_what_is_owed_to_a_node_is_given_once_and_in_order() -> None:
    health = NodeHealth("node")
    first, second = release(("a",), "us", 0), release(("b",), "us", 0)
    health.owe(first)
    health.owe(second)
    assert [health.collect(), health.collect()] == [[first, second], []]
