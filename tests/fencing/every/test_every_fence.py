"""What every guard does, whatever it guards."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from celery_redlock import Lease
from celery_redlock.errors import FenceRecordCorrupt, InvalidFencingToken, StaleFencingToken
from tests.fencing.fences import Guarded, kinds

LARGEST = 2**53 - 1
NO_TOKENS: list[Any] = [0, -1, 2**53, 1.0, "1", b"1", True]
#: The others have the token in the object.
CLAIMING = kinds(without=("s3",))


def test_a_first_write_is_made(guarded: Guarded) -> None:
    guarded.write(b"100", 5)
    assert (guarded.read(), guarded.seen()) == (b"100", 5)


def test_a_newer_token_writes(guarded: Guarded) -> None:
    guarded.write(b"100", 5)
    guarded.write(b"200", 6)
    assert (guarded.read(), guarded.seen()) == (b"200", 6)


def test_the_same_token_writes_again_and_again(guarded: Guarded) -> None:
    for content in (b"1", b"2", b"2", b"3"):
        guarded.write(content, 5)
    assert (guarded.read(), guarded.seen()) == (b"3", 5)


def test_an_older_token_changes_nothing(guarded: Guarded) -> None:
    guarded.write(b"100", 5)
    with contextlib.suppress(StaleFencingToken):
        guarded.write(b"stale", 4)
    assert (guarded.read(), guarded.seen()) == (b"100", 5)


def test_a_refusal_names_the_resource_and_both_tokens(guarded: Guarded) -> None:
    guarded.write(b"100", 5)
    with pytest.raises(StaleFencingToken) as caught:
        guarded.write(b"stale", 4)
    error = caught.value
    assert (error.resource, error.seen, error.offered) == (guarded.name, 5, 4)


def test_neighbours_at_the_end_of_the_range_are_told_apart(guarded: Guarded) -> None:
    guarded.write(b"100", LARGEST)
    with pytest.raises(StaleFencingToken) as caught:
        guarded.write(b"stale", LARGEST - 1)
    assert (caught.value.seen, guarded.seen()) == (LARGEST, LARGEST)


def test_tokens_are_compared_as_numbers(guarded: Guarded) -> None:
    guarded.write(b"100", 9)
    guarded.write(b"200", 10)
    assert guarded.read() == b"200"


@pytest.mark.parametrize("token", NO_TOKENS, ids=repr)
def test_what_is_no_token_is_refused(guarded: Guarded, token: Any) -> None:
    with pytest.raises(InvalidFencingToken):
        guarded.write(b"100", token)
    assert guarded.read() is None


def test_the_token_is_the_current_lease_s_by_default(guarded: Guarded, lease: Lease) -> None:
    guarded.write(b"100", None)
    assert guarded.seen() == lease.fencing_token


def test_outside_of_a_lease_the_token_must_be_given(guarded: Guarded) -> None:
    with pytest.raises(InvalidFencingToken, match="Give the token"):
        guarded.write(b"100", None)


@pytest.mark.parametrize("opener", CLAIMING, indirect=True)
def test_a_claimed_resource_refuses_older_tokens_before_anything_is_written(
    guarded: Guarded,
) -> None:
    guarded.write(b"100", 5)
    guarded.claim(7)
    with pytest.raises(StaleFencingToken):
        guarded.write(b"stale", 6)
    assert (guarded.read(), guarded.seen()) == (b"100", 7)


@pytest.mark.parametrize("opener", CLAIMING, indirect=True)
def test_an_older_token_cannot_claim(guarded: Guarded) -> None:
    guarded.claim(7)
    with pytest.raises(StaleFencingToken):
        guarded.claim(6)
    assert guarded.seen() == 7


@pytest.mark.parametrize("opener", kinds(without=("sqlite", "postgresql")), indirect=True)
def test_a_damaged_record_stops_every_write_and_says_what_to_do(guarded: Guarded) -> None:
    guarded.write(b"100", 5)
    guarded.spoil()
    with pytest.raises(FenceRecordCorrupt, match="highest token") as caught:
        guarded.write(b"200", LARGEST)
    assert caught.value.resource == guarded.name
    assert guarded.read() != b"200"


@pytest.mark.parametrize("opener", CLAIMING, indirect=True)
def test_a_record_that_was_deleted_starts_anew(guarded: Guarded) -> None:
    guarded.write(b"100", 5)
    guarded.forget()
    guarded.write(b"200", 3)
    assert (guarded.read(), guarded.seen()) == (b"200", 3)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\xff\r\n", bytes(range(256)) * 20_000],
    ids=["empty", "binary", "huge"],
)
def test_any_content_is_kept_as_it_is(guarded: Guarded, content: bytes, request: Any) -> None:
    if "redis-text" in request.node.callspec.id:
        content = content.decode("latin-1").encode()
    guarded.write(content, 5)
    assert guarded.read() == content
