"""However a task ends that was locked when it was sent, its key is free for the next publish."""

from __future__ import annotations

import pytest
from celery import states

from celery_redlock import is_duplicate
from tests.acceptance.apps.unique_tasks import BRIEF_WINDOW, BRIEFLY, FREE_AT_THE_END
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.publisher import Publisher
from tests.support.waiting import TIMEOUT, wait_until


def assert_runs_again(publisher: Publisher, journal: Journal, task: str) -> None:
    """The next publish is not a duplicate, and its body runs."""
    following = publisher.send(task, journal.key)
    assert not is_duplicate(following)
    assert following.get(timeout=TIMEOUT) == "held"
    assert journal.of("entered")[-1]["id"] == following.id


@pytest.mark.parametrize("how", ["hold", "fail", "ignore", "reject"])
@pytest.mark.parametrize("mode", FREE_AT_THE_END)
def test_the_next_publish_runs_once_the_body_has_ended(
    mode: str, how: str, publisher: Publisher, lock: Lock, queued: Lock, journal: Journal
) -> None:
    result = publisher.send(f"unique.{mode}", journal.key, how)
    assert journal.wait_for("entered")["id"] == result.id

    journal.open()

    journal.wait_for("left" if how == "hold" else "unwound")
    lock.wait_until_gone()
    queued.wait_until_gone()
    assert_runs_again(publisher, journal, f"unique.{mode}")


@pytest.mark.parametrize("how", ["retry_in_vain", "autoretry_in_vain"])
@pytest.mark.parametrize("mode", FREE_AT_THE_END)
def test_the_next_publish_runs_once_the_tries_are_used_up(
    mode: str, how: str, publisher: Publisher, lock: Lock, queued: Lock, journal: Journal
) -> None:
    journal.open()

    result = publisher.send(f"unique.{mode}", journal.key, how)

    assert journal.wait_for("unwound", 2)["id"] == result.id
    wait_until(lambda: result.state == states.FAILURE, message="the task to fail")
    lock.wait_until_gone()
    queued.wait_until_gone()
    assert_runs_again(publisher, journal, f"unique.{mode}")
    assert len(journal.of("entered")) == 3


def test_the_result_is_there_before_the_key_is_free(
    publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    result = publisher.send("unique.until_executed", journal.key)
    journal.wait_for("entered")

    journal.open()

    lock.wait_until_gone()
    assert result.state == states.SUCCESS


@pytest.mark.parametrize("how", ["hold", "fail"])
def test_the_key_of_until_expired_stays_taken_for_the_rest_of_its_window(
    how: str, publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    journal.open()
    result = publisher.send(f"unique.{BRIEFLY}", journal.key, how)
    wait_until(result.ready, message="the task to end")

    following = publisher.send(f"unique.{BRIEFLY}", journal.key)

    assert is_duplicate(following)
    assert following.id == result.id
    # Node by node, once the result is stored.
    wait_until(lambda: lock.expires_in <= BRIEF_WINDOW, BRIEF_WINDOW)
    # The end of the window frees the key, with nobody's doing.
    lock.wait_until_gone()
    assert_runs_again(publisher, journal, f"unique.{BRIEFLY}")
