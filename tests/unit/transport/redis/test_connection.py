"""Replies are matched strictly in order; whatever else a node says ends its connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import hiredis
import pytest

from celery_redlock.protocol.commands import Command, inspect, read_register, write_register
from celery_redlock.transport.redis.connection import (
    ConnectionBrokenError,
    NodeConnection,
    PendingReply,
)
from celery_redlock.transport.redis.node_set import NodeHealth
from tests.support.commands import acquire, extend, release

COMMAND = acquire(("key",), "us", 1000, 1, 0)

#: A connection, and the node's end of it.
Ends = tuple[NodeConnection, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    connection = NodeConnection(SimpleNamespace(disconnect=ours.close), ours)
    yield connection, theirs
    connection.close()
    theirs.close()


def said(connection: NodeConnection, *nonces: bytes, command: Command = COMMAND) -> None:
    connection.pending.extend(
        PendingReply(command, 0.0, exchange=1, nonce=nonce) for nonce in nonces
    )


def answer(*fields: bytes) -> bytes:
    words: Any = fields
    return bytes(hiredis.pack_command(words))


def test_answers_are_matched_first_in_first_out(ends: Ends) -> None:
    connection, node = ends
    said(connection, b"1", b"2")
    node.sendall(answer(b"1", b"G", b"7") + answer(b"2", b"A"))
    assert [(pending.nonce, fields) for pending, fields in connection.receive()] == [
        (b"1", [b"G", b"7"]),
        (b"2", [b"A"]),
    ]


def test_an_answer_may_come_in_pieces(ends: Ends) -> None:
    connection, node = ends
    said(connection, b"1")
    whole = answer(b"1", b"A")
    node.sendall(whole[:5])
    assert list(connection.receive()) == []
    node.sendall(whole[5:])
    assert len(list(connection.receive())) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (answer(b"another", b"G", b"7"), "another command"),
        (b"+OK\r\n", "another command"),
        (b"$-1\r\n", "another command"),
        (b"*0\r\n", "another command"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "garbage"),
        (b"*2147483647\r\n", "garbage: it announces 2147483647 elements"),
        (b"%1\r\n*0\r\n+a list as a key\r\n", "garbage"),
        (answer(b"1", b"A") + answer(b"1", b"A"), "to no command"),
    ],
)
def test_whatever_else_is_said_breaks_the_link(ends: Ends, words: bytes, says: str) -> None:
    connection, node = ends
    said(connection, b"1")
    node.sendall(words)
    with pytest.raises(ConnectionBrokenError, match=says):
        list(connection.receive())


def test_an_error_from_the_server_is_an_answer(ends: Ends) -> None:
    connection, node = ends
    said(connection, b"1")
    node.sendall(b"-READONLY You can't write\r\n")
    ((_, reply),) = connection.receive()
    assert isinstance(reply, hiredis.ReplyError)


def test_a_closed_connection_breaks_the_link(ends: Ends) -> None:
    connection, node = ends
    node.close()
    with pytest.raises(ConnectionBrokenError, match="closed the connection"):
        list(connection.receive())


def test_what_the_socket_does_not_take_is_kept_in_order(ends: Ends) -> None:
    connection, node = ends
    pieces = [bytes([65 + number]) * 100_000 for number in range(20)]
    for piece in pieces:
        connection.send(piece)
    assert connection.has_unsent
    arrived = b""
    while len(arrived) < 2_000_000:
        arrived += node.recv(65536)
        connection.flush()
    assert b"".join(pieces) == arrived
    assert not connection.has_unsent


def test_a_silent_node_is_told_no_more_than_what_undoes(ends: Ends) -> None:
    connection, _ = ends
    said(connection, *(b"%d" % number for number in range(1000)))
    assert connection.is_full_for(COMMAND)
    assert connection.is_full_for(extend(("key",), "us", 1000, 1))
    assert connection.is_full_for(release(("key",), "somebody else", 1))
    assert not connection.is_full_for(release(("key",), "us", 1))
    assert connection.is_full_for(release(("key",), "us", 1))
    assert connection.is_full_for(inspect(("key",)))
    assert connection.is_full_for(write_register("register", 1, {}))


def test_what_may_be_long_does_not_pile_up_before_a_node_that_does_not_read(ends: Ends) -> None:
    connection, _ = ends
    assert not connection.is_full_for(write_register("register", 1, {}))
    while not connection.has_unsent:
        connection.send(b"x" * 100_000)
    assert connection.is_full_for(write_register("register", 1, {}))
    assert connection.is_full_for(read_register("register", 1))
    assert not connection.is_full_for(release(("key",), "us", 1))


def test_a_node_that_keeps_failing_is_left_out_for_longer_and_longer() -> None:
    health = NodeHealth("node")
    now, pauses = 0.0, []
    for _ in range(10):
        health.record_failure("refused", now)
        start = now
        while health.is_backing_off(now):
            now += 0.001
        pauses.append(now - start)
    assert 0.024 < pauses[0] < 0.052
    assert all(0.99 < pause < 2.01 for pause in pauses[6:])
    health.record_success()
    assert (health.is_backing_off(now), health.reason) == (False, None)
