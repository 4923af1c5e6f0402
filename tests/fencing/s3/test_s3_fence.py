"""What is particular to guarded objects."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_redlock.errors import StaleFencingToken
from celery_redlock.fencing import S3Fence
from tests.fencing.fences import moto_store

KEY = "account:7"


@pytest.fixture
def client() -> Iterator[Any]:
    with moto_store() as client:
        yield client


@pytest.fixture
def fence(client: Any) -> S3Fence:
    return S3Fence(client, "bank")


class Between:
    """A client with something that happens after a writer's first look and before its put."""

    def __init__(self, client: Any, event: Callable[[], object]) -> None:
        self._client = client
        self._event: Callable[[], object] | None = event
        self.puts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def put_object(self, **options: Any) -> Any:
        self.puts += 1
        event, self._event = self._event, None
        if event:
            event()
        return self._client.put_object(**options)


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_writer_overtaken_between_look_and_put_is_refused(
    fence: S3Fence, client: Any, before: bytes | None
) -> None:
    if before is not None:
        fence.put(KEY, before, 3)
    slow = S3Fence(Between(client, lambda: fence.put(KEY, b"new", 7)), "bank")
    with pytest.raises(StaleFencingToken):
        slow.put(KEY, b"stale", 5)
    assert (fence.get(KEY), fence.seen(KEY)) == (b"new", 7)


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_writer_disturbed_by_an_older_token_writes_in_the_end(
    fence: S3Fence, client: Any, before: bytes | None
) -> None:
    if before is not None:
        fence.put(KEY, before, 3)
    slow = Between(client, lambda: fence.put(KEY, b"older", 4))
    S3Fence(slow, "bank").put(KEY, b"new", 5)
    assert (fence.get(KEY), slow.puts) == (b"new", 2)


def test_a_writer_whose_object_is_deleted_meanwhile_creates_it(fence: S3Fence, client: Any) -> None:
    fence.put(KEY, b"old", 3)
    slow = Between(client, lambda: client.delete_object(Bucket="bank", Key=KEY))
    S3Fence(slow, "bank").put(KEY, b"new", 5)
    assert (fence.get(KEY), slow.puts) == (b"new", 2)


def test_a_store_that_never_agrees_is_not_asked_for_ever(fence: S3Fence, client: Any) -> None:
    class Refusing(Between):
        def put_object(self, **options: Any) -> Any:
            return super().put_object(**{**options, "IfMatch": '"never"'})

    fence.put(KEY, b"old", 3)
    refusing = Refusing(client, lambda: None)
    with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
        S3Fence(refusing, "bank").put(KEY, b"new", 5)
    assert refusing.puts == 100


def test_a_change_is_made_once_although_its_answer_was_lost(fence: S3Fence, client: Any) -> None:
    fence.put(KEY, b"1", 5)
    sent = []

    def lose_the_first_answer(attempts: int, **_: object) -> float | None:
        sent.append(attempts)
        return 0.0 if attempts == 1 else None  # so soon is it sent again

    client.meta.events.register_first("needs-retry.s3.PutObject", lose_the_first_answer)
    fence.update(KEY, lambda body: b"%d" % (int(body or 0) + 1), 5)
    assert (fence.get(KEY), sent) == (b"2", [1, 2])


def test_a_change_of_what_is_not_there_begins_with_nothing(fence: S3Fence) -> None:
    fence.update(KEY, lambda body: b"was " + repr(body).encode(), 5)
    assert fence.get(KEY) == b"was None"


def test_a_change_is_made_of_what_it_replaces(fence: S3Fence, client: Any) -> None:
    fence.put(KEY, b"a", 5)
    slow = S3Fence(Between(client, lambda: fence.put(KEY, b"b", 5)), "bank")
    slow.update(KEY, lambda body: (body or b"") + b"!", 5)
    assert fence.get(KEY) == b"b!"


class InOneStep(Between):
    """A client whose reads are whole, and whose puts compare and write at once, as those of S3."""

    def __init__(self, client: Any) -> None:
        super().__init__(client, lambda: None)
        self._step = threading.Lock()

    def put_object(self, **options: Any) -> Any:
        with self._step:
            return super().put_object(**options)

    def get_object(self, **options: Any) -> Any:
        # moto closes the file of an object that is replaced, also for who is reading it.
        with self._step:
            found = self._client.get_object(**options)
            return {**found, "Body": io.BytesIO(found["Body"].read())}


def test_changes_from_many_threads_are_all_made(client: Any) -> None:
    fence = S3Fence(InOneStep(client), "bank")

    def add(number: int) -> None:
        for _ in range(5):
            fence.update(KEY, lambda body: (body or b"") + b"%d" % number, 5)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, range(6)))
    assert sorted(fence.get(KEY)) == sorted(b"012345" * 5)


def test_the_caller_s_metadata_and_options_are_kept(fence: S3Fence, client: Any) -> None:
    fence.put(KEY, b"{}", 5, ContentType="text/x", Metadata={"by": "me"})
    head = client.head_object(Bucket="bank", Key=KEY)
    assert (head["ContentType"], head["Metadata"]["by"]) == ("text/x", "me")


def test_a_missing_bucket_is_told(client: Any) -> None:
    with pytest.raises(client.exceptions.NoSuchBucket):
        S3Fence(client, "nowhere").put(KEY, b"", 5)


def test_an_object_from_before_the_guard_is_replaced(fence: S3Fence, client: Any) -> None:
    client.put_object(Bucket="bank", Key=KEY, Body=b"old")
    fence.put(KEY, b"new", 5)
    assert (fence.get(KEY), fence.seen(KEY)) == (b"new", 5)


@pytest.mark.parametrize(("names_its_token", "let_through"), [(False, True), (True, False)])
def test_the_same_bytes_again_hide_a_newer_writer_unless_the_token_is_among_them(
    fence: S3Fence, client: Any, names_its_token: bool, let_through: bool
) -> None:
    def body(text: str, token: int) -> bytes:
        return f"{text} {token if names_its_token else ''}".encode()

    fence.put(KEY, body("same", 3), 3)
    slow = S3Fence(Between(client, lambda: fence.put(KEY, body("same", 7), 7)), "bank")
    try:
        slow.put(KEY, body("stale", 5), 5)
    except StaleFencingToken:
        assert not let_through
    else:
        assert let_through
