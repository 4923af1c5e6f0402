"""Lock keys, reserved records and owner values."""

from __future__ import annotations

import copy
import pickle
import zlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock import LockKeyError, Redlock
from celery_redlock.protocol.keys import (
    MAX_SLOTS,
    Key,
    can_hold_lock,
    candidate_above,
    fence_key,
    given_back,
    in_header,
    lock_of,
    owner_label,
    owner_timestamp_us,
    owner_value,
    places_in_header,
    places_of,
    validate_key,
    validate_node_key,
    wait_queue_key,
    wake_channel,
)
from celery_redlock.protocol.timing import CANDIDATE_AHEAD_US


@given(st.text(min_size=1).filter(lambda key: not key.encode("utf-8", "replace").startswith(b"?")))
def test_counters_are_4096_buckets_by_crc32_of_the_key(key: str) -> None:
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return
    assert f"redlock-meta:fence:{zlib.crc32(encoded) % 4096}" == fence_key(key)


@pytest.mark.parametrize("key", ["", "redlock-meta:", "redlock-meta:guard", "bad \ud800"])
def test_reserved_empty_and_unwritable_keys_are_refused(key: str) -> None:
    with pytest.raises(LockKeyError):
        validate_key(key)


@pytest.mark.parametrize("key", ["redlock-meta", " ", "ключ", "a:b", "x" * 10_000])
def test_every_other_key_is_taken_as_it_is(key: str) -> None:
    assert key == validate_key(key)


@pytest.mark.parametrize("key", ["x" * 10_001, "é" * 5_001, "x" * 10_000_000])
def test_a_key_that_is_too_long_is_refused_with_the_numbers_in_a_short_text(key: str) -> None:
    with pytest.raises(LockKeyError, match="at most 10,000 are allowed") as refused:
        validate_key(key)
    assert f"{len(key.encode()):,} bytes" in str(refused.value)
    assert len(str(refused.value)) < 300


def test_an_owner_value_carries_a_readable_suffix() -> None:
    assert owner_value(b"\x00\xff", 17, "task-1 host 42") == "00ff 17 task-1 host 42"
    assert owner_value(b"\x00\xff", 17) == "00ff 17"


def test_the_candidate_of_an_attempt_is_read_from_its_owner_value() -> None:
    assert owner_timestamp_us(owner_value(bytes(16), 17, "label")) == 17
    assert owner_timestamp_us(owner_value(bytes(16), 17)) == 17


@pytest.mark.parametrize(
    "value",
    ["", "somebody", "00ff 17", "0" * 32, f"{'0' * 32} x", f"{'0' * 32} {'9' * 5000}", "a b c"],
)
def test_an_owner_value_of_somebody_else_has_no_candidate(value: str) -> None:
    assert owner_timestamp_us(value) is None


def test_what_follows_a_reservation_has_a_larger_number_than_its_acquire_had() -> None:
    assert candidate_above(owner_value(bytes(16), 17), 5) == 18


def test_an_owner_value_from_the_future_gives_no_number_that_nodes_would_not_take() -> None:
    assert candidate_above(owner_value(bytes(16), 2**53), 17) == 17 + CANDIDATE_AHEAD_US


def test_nothing_has_to_follow_what_has_no_candidate() -> None:
    assert candidate_above("somebody", 17) == 0


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        (owner_value(bytes(16), 17, "task-1 host 42"), "task-1 host 42"),
        (owner_value(bytes(16), 17), owner_value(bytes(16), 17)),
        ("somebody else's value", "somebody else's value"),
    ],
)
def test_people_read_the_label_of_an_owner_value(owner: str, expected: str) -> None:
    assert owner_label(owner) == expected


@pytest.mark.parametrize("place", ["redlock:key", "redlock-meta:queued:key"])
def test_a_lock_stands_under_lock_keys_and_reserved_records(place: str) -> None:
    assert place == validate_node_key(place)


@pytest.mark.parametrize(
    "place",
    [
        "",
        "redlock-meta:guard",
        "redlock-meta:fence:7",
        "redlock-meta:register:redlock:beat",
        "redlock-meta:\ud800",
        "x\udcff",
        7,
    ],
)
def test_no_lock_stands_where_the_protocol_has_records_of_its_own(place: Any) -> None:
    with pytest.raises(LockKeyError):
        validate_node_key(place)


@pytest.mark.parametrize(
    "key",
    ["", [], ["a", ""], b"bytes", 7, None, ["a", 7], [b"a"], "x\udcff"],
    ids=repr,
)
def test_a_client_refuses_what_cannot_be_a_key(
    key: object, redlock_memory_nodes: list[str]
) -> None:
    with Redlock(redlock_memory_nodes) as client, pytest.raises(LockKeyError):
        client.acquire(key)  # type: ignore[arg-type]


def test_a_key_that_falls_under_the_reserved_records_is_refused_with_any_prefix(
    redlock_memory_nodes: list[str],
) -> None:
    with Redlock(redlock_memory_nodes, key_prefix="redlock-") as client:
        with pytest.raises(LockKeyError, match="reserved"):
            client.acquire("meta:guard")
        assert client.acquire("other").release()


def test_a_key_named_twice_is_one_key(redlock_memory_nodes: list[str]) -> None:
    with Redlock(redlock_memory_nodes) as client:
        lease = client.acquire(["a", "b", "a"])
        assert lease.is_valid
        assert lease.release()


# Keys as values.

PLAIN = Key.of("p:", "key")
PAIR = Key.of("p:", "key", 2)
RATE = Key.of("p:", "key", 3, 61_200)
KEYS = [PLAIN, PAIR, RATE, PAIR.at(1), Key.record("redlock-meta:queued:p:key", "key")]


def values_of(key: Key) -> tuple[Any, ...]:
    return tuple(getattr(key, field.name) for field in fields(key))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda key: pickle.loads(pickle.dumps(key))]
)
def test_a_copy_of_a_key_has_its_limit(key: Key, copied: Callable[[Any], Any]) -> None:
    assert values_of(copied(key)) == values_of(key)


def test_a_key_equals_what_is_the_same_on_the_nodes() -> None:
    assert Key.of("p:", "key", 2) == Key.of("p:", "key", 3) == Key.read(PAIR.stored)
    assert len({PLAIN, PAIR, RATE, PAIR.at(0), PAIR.at(1), Key.of("", "key")}) == 6


def test_a_key_is_as_many_slots_as_its_limit_on_the_nodes() -> None:
    assert PAIR.places == ("redlock-meta:limit:p:key#0", "redlock-meta:limit:p:key#1")
    assert PLAIN.places == ("p:key",)
    assert places_of((PLAIN, PAIR)) == PLAIN.places + PAIR.places


def test_a_slot_is_one_key_on_the_nodes() -> None:
    assert PAIR.at(1).places == ("redlock-meta:limit:p:key#1",)


def test_a_rate_has_its_period_in_its_name() -> None:
    assert RATE.stored == "redlock-meta:rate:61200:p:key#"


def test_a_holder_gives_back_all_but_rates() -> None:
    assert given_back((PLAIN, PAIR, RATE)) == (PLAIN, PAIR)


@pytest.mark.parametrize("key", [PLAIN, PAIR, RATE])
def test_a_record_about_a_key_has_its_limit(key: Key) -> None:
    record = key.as_record("redlock-meta:queued:")
    assert record.is_record
    assert len(record.places) == len(key.places)
    assert (record.text, record.slots, record.period_ms) == (key.text, key.slots, key.period_ms)


@pytest.mark.parametrize("key", [PLAIN, PAIR])
def test_the_record_of_a_key_is_read_as_a_record(key: Key) -> None:
    record = key.as_record("redlock-meta:queued:")
    read = Key.read(record.places[0], "p:")
    assert (read.is_record, read.text) == (True, "redlock-meta:queued:p:key")


@pytest.mark.parametrize("key", [PLAIN, PAIR, RATE])
def test_a_header_names_all_slots_of_a_key(key: Key) -> None:
    assert places_in_header(in_header(key)) == key.places


def test_a_header_that_names_too_many_slots_is_read_as_the_most() -> None:
    assert len(places_in_header(f"{PAIR.stored}999")) == MAX_SLOTS


names = st.one_of(
    st.sampled_from(["a", "a#", "a#3", "#", "#3", "a#3#4", "5:a", "redlock-meta"]), st.text()
).filter(lambda name: can_hold_lock(name) and not name.startswith("redlock-meta:"))


@given(names, st.sampled_from(["", "p:", "#", "1:"]), st.sampled_from([0, 1000]))
def test_slots_lead_back_to_the_key_that_the_user_named(
    name: str, prefix: str, period_ms: int
) -> None:
    key = Key.of(prefix, name, 12, period_ms)
    for number, place in enumerate(key.places):
        slot = Key.read(place, prefix)
        assert (slot, slot.slot, slot.lock) == (key.at(number), number, key.stored)
        assert slot.text == name
        assert not slot.is_record
        assert slot.stays is bool(period_ms)


@given(names, names)
def test_slots_of_different_keys_are_different(one: str, other: str) -> None:
    slots = {
        slot
        for name in {one, other}
        for period_ms in (0, 1000, 2000)
        for slot in Key.of("p:", name, 12, period_ms).places
    }
    assert len(slots) == len({one, other}) * 3 * 12


@given(names, st.integers(1, MAX_SLOTS))
def test_slots_of_one_key_have_counters_of_their_own(name: str, slots: int) -> None:
    key = Key.of("p:", name, slots)
    counters = [fence_key(place) for place in key.places]
    assert len(set(counters)) == slots
    assert counters[0] == fence_key(key.stored)


def test_the_slots_of_a_key_share_one_wait_queue_and_one_channel() -> None:
    assert {lock_of(place) for place in PAIR.places} == {PAIR.stored}
    assert {wait_queue_key(place) for place in PAIR.places} == {wait_queue_key(PAIR.stored)}
    assert {wake_channel(place) for place in PAIR.places} == {wake_channel(PAIR.stored)}


@pytest.mark.parametrize(
    "place",
    [
        "redlock-meta:limit:a",
        "redlock-meta:limit:a#1234",
        "redlock-meta:rate:5:a#x",
        "redlock-meta:rate:a#1",
        "redlock-meta:rate:0:a#1",
        "redlock-meta:rate:5x:a#1",
        f"redlock-meta:rate:{'9' * 5000}:a#1",
    ],
)
def test_what_is_no_slot_is_refused(place: str) -> None:
    with pytest.raises(LockKeyError, match="is not a slot of a key with a limit"):
        validate_node_key(place)
