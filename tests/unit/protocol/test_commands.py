"""What nodes are told, and how whatever they answer is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.protocol import node_model
from celery_redlock.protocol.commands import Script, read_reply
from celery_redlock.protocol.timing import MAX_TOKEN
from celery_redlock.protocol.votes import (
    Acknowledged,
    Failed,
    Granted,
    KeyHolder,
    KeyState,
    KeyStates,
    LeaseVotes,
    NotHeld,
    Quarantined,
    Refused,
    RegisterContents,
    Superseded,
    VersionedValue,
)


@pytest.mark.parametrize(
    ("fields", "vote"),
    [
        ([b"O", b"7"], Superseded(7)),
        ([b"R", b"0"], RegisterContents(0, {})),
        (
            [b"R", b"9", b"a", b"7 0 some text", b"\xc3\xa9", b"9 9007199254740991 ", b"c", b""],
            RegisterContents(
                9,
                {"a": VersionedValue(7, 0, "some text"), "é": VersionedValue(9, MAX_TOKEN, "")},
                frozenset({"c"}),
            ),
        ),
        ([b"G", b"7"], Granted(7, 7)),
        ([b"G", b"9", b"7"], Granted(7, 9)),
        ([b"G", str(MAX_TOKEN).encode()], Granted(MAX_TOKEN, MAX_TOKEN)),
        ([b"A"], Acknowledged()),
        ([b"M"], NotHeld(missing=True)),
        ([b"F"], NotHeld(missing=False)),
        ([b"AMF"], LeaseVotes((Acknowledged(), NotHeld(missing=True), NotHeld(missing=False)))),
        ([b"Q", 1500], Quarantined(1.5)),
        ([b"H", 0, b"owner", 2500], Refused((KeyHolder(0, "owner", 2.5),))),
        ([b"H", 0, b"\xff\xfe", -1], Refused((KeyHolder(0, "\udcff\udcfe", -0.001),))),
        ([b"S", b"owner", 2500, b"7"], KeyStates((KeyState("owner", 2.5, 7),))),
        (
            [b"S", b"", -2, b"0", b"", -1, b"9"],
            KeyStates((KeyState(None, 0.0, 0), KeyState("", -0.001, 9))),
        ),
        (
            [b"H", 0, b"a", 1, 2, b"b", 2],
            Refused((KeyHolder(0, "a", 0.001), KeyHolder(2, "b", 0.002))),
        ),
    ],
)
def test_answers_of_the_scripts_are_votes(fields: list[Any], vote: object) -> None:
    assert vote == read_reply(fields)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [b"G"],
        [b"G", b"0"],
        [b"G", b"-1"],
        [b"G", str(MAX_TOKEN + 1).encode()],
        [b"G", b"seven"],
        [b"G", None],
        [b"H", 0, b"owner"],
        [b"H", 0, None, 5],
        [b"S", b"owner", 5],
        [b"S", None, 5, b"7"],
        [b"S", b"owner", b"soon", b"7"],
        [b"S", b"owner", 5, b"many"],
        [b"Q"],
        [b"Q", b""],
        [b"O"],
        [b"O", b"seven"],
        [b"O", b"-1"],
        [b"O", str(MAX_TOKEN + 1).encode()],
        [b"R"],
        [b"R", b"7", b"a"],
        [b"R", b"7", b"a", b"7 0"],
        [b"R", b"7", b"a", b"7 x text"],
        [b"R", b"7", b"a", b"-7 0 text"],
        [b"R", b"7", b"a", b"7 0 \xff"],
        [b"R", b"7", b"\xff", b"7 0 text"],
        [b"R", b"7", None, b"7 0 text"],
        [b"R", str(MAX_TOKEN + 1).encode()],
        [b"X"],
        [None],
        [b"HTTP/1.1 400 Bad Request"],
        [[b"G", b"7"]],
    ],
)
def test_anything_else_is_a_failed_node(fields: list[Any]) -> None:
    assert isinstance(read_reply(fields), Failed)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(max_size=8), st.text(max_size=8)
)
fields = st.lists(st.one_of(scalars, st.lists(scalars, max_size=3)), max_size=6)


codes = st.sampled_from([b"G", b"A", b"M", b"F", b"H", b"Q", b"S", b"O", b"R", b"", None, 7])


@given(codes, fields)
def test_no_answer_whatever_raises(code: object, rest: list[Any]) -> None:
    read_reply([code, *rest])


def test_a_field_that_is_damaged_is_named() -> None:
    vote = read_reply([b"R", b"7", b"a", b"7 0 fine", b"b", b"nonsense"])
    assert isinstance(vote, Failed)
    assert "field 'b' of its register" in vote.reason
    assert "b'nonsense'" in vote.reason


def test_a_modelled_node_has_an_effect_for_each_script() -> None:
    assert set(node_model._EFFECTS) == set(Script)
