"""What nodes are told, and how whatever they answer is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.protocol.commands import (
    ReleaseAction,
    Script,
    extend_together,
    read_register,
    read_reply,
    write_register,
)
from celery_redlock.protocol.keys import ANY_PAUSE, GUARD_KEY, fence_key
from celery_redlock.protocol.scripts import SHA, SOURCE
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
from tests.support.commands import acquire, extend, release


def test_keys_are_followed_by_their_counters_and_records() -> None:
    command = acquire(("a", "b"), "owner", 1000, 5, 60000)
    assert ("a", "b", fence_key("a"), fence_key("b"), GUARD_KEY, ANY_PAUSE) == command.keys


def test_an_acquire_that_takes_nothing_over_says_no_more_than_before() -> None:
    assert acquire(("a",), "owner", 1000, 5, 60000).args == ("owner", 1000, 5, 60000)
    assert acquire(("a",), "owner", 1000, 5, 60000, "them").args[4:] == ("them",)


def test_a_release_says_the_fate_of_every_key_where_it_says_one() -> None:
    actions = {"b": ReleaseAction(500, "marker"), "elsewhere": ReleaseAction(1)}
    command = release(("a", "b"), "owner", 7, 3, actions)
    assert command.args == ("owner", 7, 3, "", 3, "", 0, 500, "marker", 0)
    assert release(("a", "b"), "owner", 7, 3).args == ("owner", 7, 3)


def test_a_release_names_no_guard_record() -> None:
    assert ("a", fence_key("a")) == release(("a",), "owner", 0).keys


def test_a_register_stands_alone_among_the_keys() -> None:
    assert write_register("register", 7, {}).keys == read_register("register").keys == ("register",)


def test_extensions_together_name_all_keys_first_and_then_all_counters() -> None:
    one, two = extend(("a",), "us", 1, 2), extend(("b", "c"), "them", 3, 4)
    together = extend_together([one, two])
    assert together.keys == ("a", "b", "c", *map(fence_key, "abc"))
    assert together.args == ("us", 1, 2, 1, "them", 3, 4, 2)


def test_an_extension_alone_is_sent_as_it_is() -> None:
    one = extend(("a",), "us", 1, 2)
    assert extend_together([one]) is one


def test_a_store_says_name_version_and_text_of_each_field_and_no_version_to_delete() -> None:
    assert write_register("register", 7, {"a": (3, "text"), "b": None}).args == (
        *(7, "a", 3, "text"),
        *("b", "", ""),
    )


def test_a_fetch_promises_nothing_and_tells_everything_unless_it_is_told_to() -> None:
    assert read_register("register", max_bytes=99).args == (0, 99)
    assert read_register("register", 7, ["a", "b"], max_bytes=99).args == (7, 99, "a", "b")


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
        (
            [b"AMF"],
            LeaseVotes((Acknowledged(), NotHeld(missing=True), NotHeld(missing=False))),
        ),
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


@given(fields)
def test_a_grant_has_its_tokens_in_range(rest: list[Any]) -> None:
    vote = read_reply([b"G", *rest])
    if isinstance(vote, Granted):
        assert 1 <= vote.low <= vote.high <= MAX_TOKEN


def test_every_command_has_a_script_of_its_own() -> None:
    assert set(Script) == set(SOURCE) == set(SHA)
    assert len(set(SHA.values())) == len(Script)
