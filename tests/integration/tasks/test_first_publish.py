"""A program that only sends: nothing has finalized its app when its first message goes out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import forked
from tests.support.cases import first_of

# A process of its own: what is looked at happens once in each.
SENDER = """
import json, sys
from celery import Celery
import celery_redlock.tasks
from celery_redlock.tasks.message.envelope import HEADER, Envelope

given = json.loads(sys.argv[1])
Celery("another", set_as_current=False)
app = Celery("sender", broker="memory://", backend="cache+memory://", set_as_current=False,
             autofinalize=given.get("autofinalize", True))
app.conf.update(redlock_nodes=["memory://one"], **given["conf"])

@app.task(name="vendor.report", **given.get("options", {}))
def report():
    pass

send = report.delay if app.autofinalize else lambda: app.send_task("vendor.report")
ids = [send().id for _ in range(3)]
with app.connection_for_read() as connection:
    queue = connection.SimpleQueue(app.conf.task_default_queue)
    messages = [queue.get() for _ in range(queue.qsize())]
    nonces = {Envelope.read(message.headers).nonce for message in messages}
print(json.dumps({"messages": len(messages), "ids": len(set(ids)), "finalized": app.finalized,
                  "nonces": len(nonces - {""})}))
"""

UNIQUE = {"redlock_tasks": {"vendor.*": {"lock_key": "report", "lock_mode": "until_executed"}}}


def sent(conf: dict[str, Any], **given: Any) -> dict[str, Any]:
    """Send one task three times, and tell what went out."""
    done = forked.run("-c", SENDER, json.dumps({"conf": conf, **given}))
    told: dict[str, Any] = json.loads(done.stdout)
    return {**told, "log": done.stderr}


def test_every_message_is_marked_under_redlock_dedupe() -> None:
    assert sent({"redlock_dedupe": True})["nonces"] == 3


def test_every_message_is_marked_beside_a_pattern_that_matches_a_task_that_cannot_lock() -> None:
    misfit = {"vendor.*": {"lock_key": "{no_argument}"}}
    assert sent({"redlock_dedupe": True, "redlock_tasks": misfit})["nonces"] == 3


def test_a_pattern_holds_from_the_second_call_on() -> None:
    assert sent(UNIQUE)["messages"] == 2


def test_a_call_that_a_pattern_reached_gives_the_task_that_is_there() -> None:
    assert sent(UNIQUE)["ids"] == 2


def test_an_app_that_wants_neither_is_left_as_it_is() -> None:
    assert sent({"redlock_ttl": 5})["finalized"] is False


def test_an_app_that_is_to_be_finalized_by_hand_is_left_as_it_is() -> None:
    assert sent({"redlock_dedupe": True}, autofinalize=False)["finalized"] is False


@pytest.mark.parametrize("conf", first_of([{"redlock_dedupe": "yes"}, {"redlock_ttl": -1}]))
def test_a_wrong_setting_keeps_no_plain_task_from_being_sent(conf: dict[str, Any]) -> None:
    assert sent(conf)["messages"] == 3


@pytest.mark.parametrize("conf", first_of([UNIQUE, {**UNIQUE, "redlock_dedupe": True}]))
def test_the_first_message_of_a_pattern_is_logged_as_sent_without_its_lock(
    conf: dict[str, Any],
) -> None:
    log = sent(conf)["log"]
    assert log.count("The first message of this process, of task vendor.report[") == 1
    assert "Call app.finalize() once all tasks are imported" in log


def test_a_pattern_that_locks_in_the_worker_has_no_such_message() -> None:
    conf = {"redlock_tasks": {"vendor.*": {"lock_key": "report"}}}
    assert "The first message" not in sent(conf)["log"]


def test_a_wrong_setting_is_logged_in_its_own_words() -> None:
    log = sent({"redlock_nods": ["memory://one"]})["log"]
    assert "redlock_nods is unknown; did you mean redlock_nodes?" in log
    assert "ConfigurationError(" not in log


def test_options_of_a_task_that_does_not_lock_are_logged_once() -> None:
    log = sent({}, options={"lock_key": "report"})["log"]
    assert log.count("Task 'vendor.report' has lock_key, but is not a RedlockTask") == 1
