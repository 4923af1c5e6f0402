"""A lock taken at publish is taken over, handed on and freed in every pool."""

from __future__ import annotations

import pytest

from celery_redlock import is_duplicate
from tests.acceptance.matrix import POOLS
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.publisher import Publisher
from tests.support.waiting import TIMEOUT

NAME = "unique.until_executed"


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_is_unique_from_its_publish_to_its_end(
    publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    result = publisher.send(NAME, journal.key)
    entered = journal.wait_for("entered")
    assert lock.owner == entered["owner"]
    assert is_duplicate(publisher.send(NAME, journal.key))

    journal.open()

    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()
    assert publisher.send(NAME, journal.key).get(timeout=TIMEOUT) == "held"
    assert len(journal.of("entered")) == 2


@pytest.mark.parametrize("pool", POOLS)
def test_a_retry_takes_the_lock_along(publisher: Publisher, lock: Lock, journal: Journal) -> None:
    result = publisher.send(NAME, journal.key, "retry")
    first = journal.wait_for("entered")

    journal.open("run-1")

    journal.wait_for("unwound")
    between = publisher.send(NAME, journal.key)
    second = journal.wait_for("entered", 2)
    assert is_duplicate(between)
    assert between.id == second["id"] == result.id
    assert lock.owner == second["owner"] != first["owner"]
    assert second["token"] > first["token"]
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_fails_frees_its_key(
    publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    journal.open()

    result = publisher.send(NAME, journal.key, "fail")

    with pytest.raises(ValueError, match="on purpose"):
        result.get(timeout=TIMEOUT)
    lock.wait_until_gone()
    assert not is_duplicate(publisher.send(NAME, journal.key))
