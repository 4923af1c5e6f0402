"""A message that ends in a worker's main process, before any body, frees its key at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from celery.result import AsyncResult
from kombu.serialization import codec, registry

from celery_redlock import is_duplicate
from celery_redlock.testing import LocalCluster
from tests.acceptance.apps.unique_tasks import MODES
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker, kept_workers
from tests.support.waiting import TIMEOUT, wait_until

POOLS = ("prefork", "threads", "gevent")
HOUR = 3600.0
STAMP = "batch"

Place = Callable[[str], Lock]


@pytest.fixture(scope="module")
def shared_workers() -> Iterator[dict[str, Worker]]:
    """Workers of this module: Celery keeps a revoked message until its ETA, after all its tests."""
    with kept_workers() as workers:
        yield workers


@pytest.fixture
def place(cluster: LocalCluster) -> Iterator[Place]:
    """Give the place where a message of a mode has its key; each mode has a key of its own."""
    places: list[Lock] = []

    def of(key: str) -> Lock:
        places.append(Lock(key, list(cluster.urls)))
        if "until_and_while_executing" in key:
            places[-1].key = f"redlock-meta:queued:redlock:{key}"
        return places[-1]

    yield of
    for place in places:
        place.close()


def send_in_every_mode(publisher: Publisher, key: str, **options: Any) -> list[AsyncResult]:
    return [publisher.send(f"unique.{mode}", f"{key}-{mode}", **options) for mode in MODES]


def wait_until_received(worker: Worker, results: Sequence[AsyncResult]) -> None:
    for result in results:
        worker.wait_for_log(f"[{result.id}] received")


def by_id(worker: Worker, key: str, results: Sequence[AsyncResult]) -> None:
    worker.app.control.revoke([result.id for result in results])


def by_stamp(worker: Worker, key: str, results: Sequence[AsyncResult]) -> None:
    worker.app.control.revoke_by_stamped_headers({STAMP: key})


def terminated(worker: Worker, key: str, results: Sequence[AsyncResult]) -> None:
    """As `celery control terminate` does."""
    ids = [result.id for result in results]
    worker.app.control.broadcast("terminate", arguments={"signal": "TERM", "task_id": ids})


@pytest.mark.parametrize(
    ("pool", "revoke"),
    [*((pool, by_id) for pool in POOLS), ("prefork", by_stamp), ("prefork", terminated)],
)
def test_a_message_that_is_revoked_while_it_waits_for_its_eta_frees_its_key(
    revoke: Callable[..., None], worker: Worker, publisher: Publisher, key: str, place: Place
) -> None:
    stamps = {"stamped_headers": [STAMP], STAMP: key}
    results = send_in_every_mode(publisher, key, countdown=HOUR, **stamps)
    wait_until_received(worker, results)

    revoke(worker, key, results)

    for mode in MODES:
        place(f"{key}-{mode}").wait_until_gone()
    again = send_in_every_mode(publisher, key, countdown=HOUR)
    assert not any(map(is_duplicate, again))
    by_id(worker, key, again)


@pytest.fixture
def busy(worker: Worker, publisher: Publisher, journal: Journal) -> Iterator[None]:
    """All processes of the worker are busy until the end of the test."""
    for _ in range(4):
        worker.send("unique.plain", journal.key)
    journal.wait_for("entered", 4)
    yield
    journal.open()


@pytest.fixture
def journals(key: str, urls: dict[str, str]) -> Iterator[list[Journal]]:
    """Of the messages of all modes."""
    journals = [Journal(f"{key}-{mode}", urls["journal"]) for mode in MODES]
    yield journals
    for journal in journals:
        journal.open()
        journal.close()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.usefixtures("busy")
def test_a_message_that_is_revoked_behind_a_busy_process_makes_way_for_the_next_call(
    worker: Worker,
    publisher: Publisher,
    key: str,
    place: Place,
    journal: Journal,
    journals: list[Journal],
) -> None:
    results = send_in_every_mode(publisher, key)
    wait_until_received(worker, results)

    by_id(worker, key, results)

    for mode in MODES:
        place(f"{key}-{mode}").wait_until_gone()
    again = send_in_every_mode(publisher, key)
    wait_until_received(worker, again)
    for gate in (journal, *journals):
        gate.open()
    for result, of_mode in zip(again, journals, strict=True):
        assert result.get(timeout=TIMEOUT) == "held"
        assert [entry["id"] for entry in of_mode.of("entered")] == [result.id]


def test_a_message_that_is_revoked_while_it_waits_for_a_rate_limit_frees_its_key(
    worker: Worker, publisher: Publisher, key: str, lock: Lock, journal: Journal
) -> None:
    journal.open()
    name = "unique.until_executed"
    worker.app.control.rate_limit(
        name, "1/h", destination=[worker.nodename], reply=True, timeout=TIMEOUT
    )
    try:
        publisher.send(name, f"{key}-first")  # takes the hour's token
        result = publisher.send(name, key)
        wait_until_received(worker, [result])

        by_id(worker, key, [result])

        lock.wait_until_gone()
    finally:
        worker.app.control.rate_limit(
            name, "0", destination=[worker.nodename], reply=True, timeout=TIMEOUT
        )


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> str:
    """A serializer whose messages say that they are JSON, and are not."""
    broken = codec("application/json", "binary", lambda _: b"\xff")
    monkeypatch.setitem(registry._encoders, "damaged", broken)
    return "damaged"


def test_a_message_that_cannot_be_decoded_frees_its_key(
    worker: Worker, publisher: Publisher, key: str, place: Place, damaged: str
) -> None:
    send_in_every_mode(publisher, key, serializer=damaged)

    for mode in MODES:
        place(f"{key}-{mode}").wait_until_gone()
    worker.wait_for_log("Can't decode message body")


def test_a_message_of_a_content_type_that_the_worker_refuses_frees_its_key(
    worker: Worker, publisher: Publisher, key: str, place: Place
) -> None:
    send_in_every_mode(publisher, key, serializer="pickle")

    for mode in MODES:
        place(f"{key}-{mode}").wait_until_gone()
    worker.wait_for_log("Refusing to deserialize")


def test_a_message_that_expires_while_it_waits_for_its_eta_frees_its_key(
    worker: Worker, publisher: Publisher, key: str, lock: Lock
) -> None:
    result = publisher.send("unique.until_executed", key, countdown=2, expires=1)
    wait_until_received(worker, [result])

    wait_until(lambda: result.state == "REVOKED", message="the message to expire")

    lock.wait_until_gone()
