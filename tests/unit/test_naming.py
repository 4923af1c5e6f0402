"""Lock keys, reserved records and owner values."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock import LockKeyError, Redlock
from celery_redlock.protocol import fence_key, owner_value, validate_key


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


def test_an_owner_value_carries_a_readable_suffix() -> None:
    assert owner_value(b"\x00\xff", 17, "task-1 host 42") == "00ff 17 task-1 host 42"
    assert owner_value(b"\x00\xff", 17) == "00ff 17"


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
