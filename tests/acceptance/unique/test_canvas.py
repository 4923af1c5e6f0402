"""In a canvas a duplicate is never dropped where something waits for it: it ends as a skip."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from celery import chain, chord, group, states
from celery.result import AsyncResult

from celery_redlock import is_skipped
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

# The modes whose key is taken while the body runs, so that what comes then is a duplicate.
TAKEN_IN_THE_BODY = ("until_executed", "until_expired")


class Skipped:
    """Equal to the result of a task that was skipped, whatever the reason."""

    def __eq__(self, result: object) -> bool:
        return is_skipped(result)

    __hash__ = None  # type: ignore[assignment]


SKIPPED = Skipped()

in_each_mode = pytest.mark.parametrize("mode", TAKEN_IN_THE_BODY)


@pytest.fixture
def aside(key: str, urls: dict[str, str]) -> Iterator[Journal]:
    """The journal of a task with another key, which nothing holds up."""
    journal = Journal(f"{key}-aside", urls["journal"])
    journal.open()
    yield journal
    journal.close()


@pytest.fixture
def hold(publisher: Publisher, journal: Journal) -> Callable[[str], AsyncResult]:
    """Send a task that has the key until the journal's gate is opened."""

    def send(mode: str) -> AsyncResult:
        result = publisher.send(f"unique.{mode}", journal.key)
        journal.wait_for("entered")
        return result

    return send


def wait_for_one_skip(results: list[AsyncResult]) -> None:
    """Wait until all but one have ended; the one has the key that the others found taken."""
    wait_until(
        lambda: sum(result.ready() for result in results) == len(results) - 1,
        message=lambda: f"all but one to end: {[result.state for result in results]}",
    )


def assert_settled(worker: Worker, journal: Journal, lock: Lock) -> None:
    """Nothing is left of a canvas, and the body with the key ran once."""
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")
    assert len(journal.of("entered")) == 1
    wait_until(
        lambda: lock.is_gone or " finished " in (lock.owner or ""),
        message=lambda: f"{lock.key} to be free, or kept for its window: {lock.values}",
    )


@in_each_mode
def test_two_members_of_a_chord_with_one_key_make_one_body_and_a_whole_chord(
    mode: str, publisher: Publisher, worker: Worker, lock: Lock, journal: Journal, aside: Journal
) -> None:
    twice = [publisher.step(f"unique.{mode}", journal.key) for _ in range(2)]
    header = [*twice, publisher.step(f"unique.{mode}", aside.key)]

    result = chord(header, app=publisher.app)(publisher.task("unique.tally").s(journal.key))

    journal.wait_for("entered")
    wait_for_one_skip(result.parent.results)
    journal.open()
    values = result.get(timeout=TIMEOUT)
    assert sorted(values[:2], key=lambda value: value == "held") == [SKIPPED, "held"]
    assert values[2] == "held"
    assert_settled(worker, journal, lock)
    assert len(aside.of("entered")) == 1
    assert [entry["values"] for entry in journal.of("tallied")] == [values]


@in_each_mode
def test_a_chord_does_not_wait_for_the_task_that_its_member_would_have_repeated(
    mode: str,
    publisher: Publisher,
    worker: Worker,
    hold: Callable[[str], AsyncResult],
    lock: Lock,
    journal: Journal,
    aside: Journal,
) -> None:
    running = hold(mode)
    header = [publisher.step(f"unique.{mode}", name) for name in (journal.key, aside.key)]

    result = chord(header, app=publisher.app)(publisher.task("unique.tally").s(journal.key))

    assert result.get(timeout=TIMEOUT) == [SKIPPED, "held"]
    assert [part.state for part in result.parent.results] == [states.SUCCESS] * 2
    journal.open()
    assert running.get(timeout=TIMEOUT) == "held"
    assert_settled(worker, journal, lock)
    assert len(journal.of("tallied")) == 1


@in_each_mode
def test_a_duplicate_in_a_group_ends_as_a_skip(
    mode: str, publisher: Publisher, worker: Worker, lock: Lock, journal: Journal, aside: Journal
) -> None:
    keys = (journal.key, aside.key, journal.key)

    result = group([publisher.step(f"unique.{mode}", name) for name in keys])()

    journal.wait_for("entered")
    wait_for_one_skip(result.results)
    journal.open()
    first, other, second = result.get(timeout=TIMEOUT)
    assert sorted((first, second), key=lambda value: value == "held") == [SKIPPED, "held"]
    assert other == "held"
    assert_settled(worker, journal, lock)


@pytest.mark.parametrize("place", ["first", "middle"])
@in_each_mode
def test_a_chain_goes_on_after_a_duplicate(
    mode: str,
    place: str,
    publisher: Publisher,
    worker: Worker,
    hold: Callable[[str], AsyncResult],
    lock: Lock,
    journal: Journal,
    aside: Journal,
) -> None:
    running = hold(mode)
    steps = [publisher.step(f"unique.{mode}", journal.key)]
    if place == "middle":
        steps.insert(0, publisher.step(f"unique.{mode}", aside.key))
    last = publisher.task("unique.follow").s(journal.key)

    result = chain(*steps, last)()

    assert result.get(timeout=TIMEOUT) == SKIPPED
    assert [entry["value"] for entry in journal.of("followed")] == [SKIPPED]
    assert len(aside.of("entered")) == (place == "middle")
    journal.open()
    assert running.get(timeout=TIMEOUT) == "held"
    assert_settled(worker, journal, lock)


@in_each_mode
def test_what_is_linked_to_a_duplicate_is_called(
    mode: str,
    publisher: Publisher,
    worker: Worker,
    hold: Callable[[str], AsyncResult],
    lock: Lock,
    journal: Journal,
) -> None:
    running = hold(mode)

    duplicate = publisher.send(
        f"unique.{mode}", journal.key, link=publisher.step("unique.tell", journal.key)
    )

    assert duplicate.id != running.id
    assert duplicate.get(timeout=TIMEOUT) == SKIPPED
    journal.wait_for("called back")
    journal.open()
    assert running.get(timeout=TIMEOUT) == "held"
    assert_settled(worker, journal, lock)
    assert len(journal.of("called back")) == 1


def test_what_is_linked_to_the_error_of_a_duplicate_is_not_called(
    publisher: Publisher,
    worker: Worker,
    hold: Callable[[str], AsyncResult],
    lock: Lock,
    journal: Journal,
) -> None:
    running = hold("until_executed")

    duplicate = publisher.send(
        "unique.until_executed", journal.key, link_error=publisher.step("unique.tell", journal.key)
    )

    assert duplicate.id != running.id
    assert duplicate.get(timeout=TIMEOUT) == SKIPPED
    journal.open()
    assert running.get(timeout=TIMEOUT) == "held"
    assert_settled(worker, journal, lock)
    assert journal.of("called back") == []


def test_a_task_that_is_sent_without_ties_and_due_later_still_stands_for_its_duplicates(
    publisher: Publisher, worker: Worker, lock: Lock, journal: Journal
) -> None:
    later = publisher.send("unique.until_executed", journal.key, countdown=2)
    steps = [publisher.step("unique.until_executed", journal.key) for _ in range(2)]

    result = group(steps)()

    assert result.get(timeout=TIMEOUT) == [SKIPPED, SKIPPED]
    journal.open()
    assert later.get(timeout=TIMEOUT) == "held"
    assert_settled(worker, journal, lock)


def test_a_group_that_is_due_later_runs_each_key_once(
    publisher: Publisher, worker: Worker, lock: Lock, journal: Journal, aside: Journal
) -> None:
    keys = (journal.key, aside.key, journal.key)
    steps = [publisher.step("unique.until_executed", name) for name in keys]

    result = group(steps).apply_async(countdown=0.5)

    journal.wait_for("entered")
    wait_for_one_skip(result.results)
    journal.open()
    first, other, second = result.get(timeout=TIMEOUT)
    assert sorted((first, second), key=lambda value: value == "held") == [SKIPPED, "held"]
    assert other == "held"
    assert_settled(worker, journal, lock)


def test_a_chord_between_the_steps_of_a_chain_goes_on_to_the_end(
    publisher: Publisher, worker: Worker, lock: Lock, journal: Journal, aside: Journal
) -> None:
    step, task = publisher.step, publisher.task
    twice = [step("unique.until_executed", journal.key) for _ in range(2)]
    inner = chain(
        step("unique.until_executed", f"{aside.key}"), step("unique.until_executed", aside.key)
    )

    result = chain(
        step("unique.until_executed", aside.key),
        group(*twice, inner),
        task("unique.tally").s(journal.key),
        task("unique.follow").s(journal.key),
    )()

    journal.wait_for("entered")
    tally = result.parent
    wait_until(lambda: tally.parent is not None and tally.parent.results)
    wait_for_one_skip(tally.parent.results)
    journal.open()
    first, second, third = values = result.get(timeout=TIMEOUT)
    assert sorted((first, second), key=lambda value: value == "held") == [SKIPPED, "held"]
    assert third == "held"
    assert_settled(worker, journal, lock)
    assert len(aside.of("entered")) == 3
    assert [entry["values"] for entry in journal.of("tallied")] == [values]
    assert [entry["value"] for entry in journal.of("followed")] == [values]
