"""What a node announces is checked before it is parsed, in however many pieces it comes."""

from __future__ import annotations

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.transport.redis.framing import (
    MAX_BYTES,
    MAX_ELEMENTS,
    MAX_PUSHES,
    Framing,
    GarbageError,
)

LIES = {
    "billions of elements": (b"*2147483647\r\n", "announces 2147483647 elements"),
    "billions in a list": (b"*2\r\n$1\r\n1\r\n*2147483647\r\n", "elements"),
    "many by lists within lists": (b"*900000\r\n" * 2, "announces 1800000 elements"),
    "a map of billions": (b"%1073741823\r\n", "elements"),
    "a set of billions": (b"~2147483647\r\n", "elements"),
    "a push of billions": (b">2147483647\r\n", "elements"),
    "an attribute of billions": (b"|2147483647\r\n", "elements"),
    "a long bulk": (b"$536870912\r\n", "announces 536870912 bytes"),
    "a long verbatim text": (b"=536870912\r\n", "bytes"),
    "a long error": (b"!536870912\r\n", "bytes"),
    "many long bulks": (b"*9\r\n" + (b"$3000000\r\n" + b"x" * 3000000 + b"\r\n") * 6, "bytes"),
    "many long lines": (b"*5000\r\n" + (b"+" + b"x" * 4000 + b"\r\n") * 5000, "bytes"),
    "lists within lists": (b"*1\r\n" * 20, "deep"),
    "a line without an end": (b"+" + b"x" * 5000, "more than 4096 bytes"),
    "an error without an end": (b"-" + b"x" * 5000, "more than 4096 bytes"),
    "a number without an end": (b":" + b"1" * 40, "more than 24 bytes"),
    "a count without an end": (b"*" + b"0" * 40, "more than 24 bytes"),
    "a count that is none": (b"*-7\r\n", "no reply has"),
    "a length that is none": (b"$+5\r\nabcde\r\n", "no reply has"),
    "another protocol": (b"HTTP/1.1 200 OK\r\n\r\n", "begins with"),
    "messages without end": (b">1\r\n+x\r\n" * (MAX_PUSHES + 1), "unsolicited"),
}

USUAL = (
    b"*2\r\n$4\r\n1a2b\r\n$1\r\nA\r\n",
    b"*3\r\n$4\r\n1a2b\r\n$1\r\nG\r\n$16\r\n1763800000000000\r\n",
)


def check_in_pieces(framing: Framing, words: bytes, size: int) -> None:
    for at in range(0, len(words), size):
        framing.check(words[at : at + size])


@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("pieces", [1, 10, 1000])
def test_a_lie_is_refused_in_however_many_pieces_it_comes(name: str, pieces: int) -> None:
    words, says = LIES[name]
    with pytest.raises(GarbageError, match=says):
        check_in_pieces(Framing(), words, max(1, len(words) // pieces))


@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("before", USUAL)
def test_a_lie_is_refused_behind_a_good_answer(name: str, before: bytes) -> None:
    words, says = LIES[name]
    with pytest.raises(GarbageError, match=says):
        Framing().check(before * 3 + words)


@pytest.mark.parametrize("name", LIES)
def test_a_payload_may_look_like_any_lie(name: str) -> None:
    payload = b"\r\n" + LIES[name][0][:100_000] + b"\r\n"
    words: list[bytes] = [b"1a", b"R", payload, payload]
    answer = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]
    framing = Framing()
    check_in_pieces(framing, answer, 1000)
    for usual in USUAL:
        framing.check(usual)


def test_what_answers_of_ours_can_be_is_let_through() -> None:
    framing = Framing()
    framing.check(b"*%d\r\n" % MAX_ELEMENTS + b":1\r\n" * MAX_ELEMENTS)
    size = MAX_BYTES - 1000
    framing.check(b"*2\r\n$%d\r\n" % size)
    framing.check(b"x" * size)
    framing.check(b"\r\n:1\r\n")
    for usual in USUAL:
        framing.check(usual * 1000)


Value = None | int | bytes | list["Value"]


def encoded(value: Value) -> bytes:
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%s\r\n" % (len(value), value)
    return b"*%d\r\n" % len(value) + b"".join(map(encoded, value))


VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(VALUES | st.sampled_from(USUAL).map(bytes), max_size=6), st.data())
def test_it_stands_where_the_parser_stands(values: list[Value], data: st.DataObject) -> None:
    words = b"".join(map(encoded, values))
    framing, at = Framing(), 0
    while at < len(words):
        size = data.draw(st.integers(1, 30))
        framing.check(words[at : at + size])
        at += size
    # Between two answers, a header is a header.
    with pytest.raises(GarbageError, match="announces 2147483647 elements"):
        framing.check(b"*2147483647\r\n")
