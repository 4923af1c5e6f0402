"""What a header says is believed as far as it can be meant, and the rest is dropped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import Reject

from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.envelope import HEADER, MAX_CLOCK_SKEW, MAX_KEYS, Envelope
from celery_redlock.tasks.message.header_values import END_OF_TIME
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.message.tick import LONGEST_INTERVAL, MAX_NAME_LENGTH
from celery_redlock.tasks.rules.facts import Role
from tests.support.skew import clock_off_by
from tests.support.tasks import Bench
from tests.support.ticks import mark as mark_of_tick
from tests.support.ticks import send_tick, tick, tick_now
from tests.support.unique import KEY, WINDOW, declare, free, left, owned_by, role, value
from tests.unit.tasks.jobs import job, raising, retry_once

LONG = "x" * 1_000_000
HOUR = 3600.0
QUEUE_TTL = LockOptions().queue_ttl


#: Returns the warnings about headers.
Warned = Callable[[], list[str]]


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Warned:
    def warnings() -> list[str]:
        said = [it.getMessage() for it in caplog.records if it.levelno == logging.WARNING]
        return [message for message in said if "out of bounds" in message]

    return warnings


def forged(request: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a message with other fields in its header."""
    return {**request, HEADER: {**(request.get(HEADER) or {}), **fields}}


def forged_lock(request: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return forged(request, lock={**request[HEADER]["lock"], **fields})


def test_a_window_without_end_is_as_long_as_the_tasks_window(bench: Bench, warned: Warned) -> None:
    request = bench.send(declare(bench, lock_mode="until_expired"))
    bench.run(forged(request, window_until=END_OF_TIME))
    assert WINDOW - 30 < left(bench) <= WINDOW
    (warning,) = warned()
    assert f"job[{request['id']}]" in warning
    assert "window_until" in warning


def test_a_tick_without_end_is_remembered_as_long_as_the_task_says(
    bench: Bench, warned: Warned
) -> None:
    what = tick_now(until=END_OF_TIME)
    bench.run(send_tick(bench, job(bench, lock_dedupe_window=500), what))
    assert 400 < left(bench, mark_of_tick(bench, what)) <= 500
    assert "tick.until" in warned()[0]


def test_a_tick_is_remembered_no_longer_than_to_the_next_whatever_the_clocks_show(
    bench: Bench,
) -> None:
    what = tick_now(HOUR, until=time.time() + HOUR + 100)
    bench.run(send_tick(bench, job(bench, lock_dedupe_window=500), what))
    assert 400 < left(bench, mark_of_tick(bench, what)) <= 600


def test_a_yearly_tick_is_remembered_to_the_next(bench: Bench, warned: Warned) -> None:
    what = tick_now()
    what = tick(due=what.due, until=what.due + LONGEST_INTERVAL)
    bench.run(send_tick(bench, job(bench), what))
    assert left(bench, mark_of_tick(bench, what)) > LONGEST_INTERVAL
    assert not warned()


@pytest.mark.parametrize(
    ("due", "facts"),
    [(MAX_CLOCK_SKEW + HOUR, {}), (0.0, {"entry": "x" * (MAX_NAME_LENGTH + 1)})],
    ids=["of the far future", "of an entry with an endless name"],
)
def test_a_tick_is_none_that_is(bench: Bench, due: float, facts: Any) -> None:
    task = job(bench, lambda self: self.request.tick)
    outcome = bench.run(send_tick(bench, task, tick_now(due, **facts)))
    assert (outcome.state, outcome.value) == ("SUCCESS", None)


@pytest.mark.parametrize(
    ("field", "value"),
    [("schedule", LONG), ("schedule", "\ud800"), ("token", 2**60), ("until", "tomorrow")],
)
def test_what_else_is_wrong_with_a_tick_is_dropped_alone(
    bench: Bench, field: str, value: Any
) -> None:
    task = job(bench, lambda self: self.request.tick.entry)
    what = tick_now()
    request = send_tick(bench, task, what)
    assert bench.run(forged(request, tick={**what.write(), field: value})).value == what.entry


@pytest.mark.parametrize("ahead", [HOUR, MAX_CLOCK_SKEW / 2, END_OF_TIME])
def test_a_lock_goes_back_to_its_message_for_no_longer_than_the_task_says(
    bench: Bench, mode: str, ahead: float
) -> None:
    body = raising(Reject("later", requeue=True))
    request = bench.send(declare(bench, body, lock_mode=mode))
    expires_at = min(END_OF_TIME, request[HEADER]["lock"]["expires_at"] + ahead)
    bench.run(forged_lock(request, expires_at=expires_at))
    longest = WINDOW if mode == "until_expired" else QUEUE_TTL
    assert all(left(bench, place) <= longest for place in bench.node.state.keys)


def test_a_lock_without_end_is_warned_of(bench: Bench, warned: Warned) -> None:
    request = bench.send(declare(bench))
    assert bench.run(forged_lock(request, expires_at=END_OF_TIME)).value == "ran"
    assert "lock.expires_at" in warned()[0]


def test_a_message_that_is_put_back_tells_no_endless_life_on(bench: Bench) -> None:
    request = bench.send(declare(bench, lock_mode="until_and_while_executing"))
    owned_by(bench, "other")
    bench.run(forged_lock(request, expires_at=END_OF_TIME))
    assert Envelope.read(bench.receive()).reservation.expires_at <= time.time() + QUEUE_TTL


@pytest.mark.parametrize("role", [Role.RUNNING, Role.FINISHED])
def test_nobody_takes_a_lock_over_that_no_message_brings(bench: Bench, role: Role) -> None:
    request = bench.send(declare(bench, lock_on_duplicate="raise"))
    free(bench)
    lease = owned_by(bench, "other", role)
    assert bench.run(forged_lock(request, owner=lease.owner)).value != "ran"
    assert value(bench) == lease.owner


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": [KEY] * (MAX_KEYS + 1)},
        {"keys": ["x" * 2_000_000]},
        {"keys": [LONG, LONG]},
        {"keys": ["\ud800"]},
        {"keys": [KEY, ""]},
        {"keys": [KEY, 7]},
        {"keys": KEY},
        {"keys": {KEY: 1}},
        {"owner": LONG},
        {"owner": "\ud800"},
        {"owner": "somebody"},
        {"expires_at": "never"},
        {"expires_at": True},
        {"expires_at": 10**400},
        {"expires_at": float("nan")},
    ],
)
def test_a_lock_that_none_can_have_is_none(bench: Bench, changes: dict[str, Any]) -> None:
    request = bench.send(declare(bench))
    free(bench)
    assert bench.run(forged_lock(request, **changes)).value == "ran"


def test_a_lock_on_other_keys_is_named_in_short(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    other = "redlock:" + LONG[:1000]
    bench.run(forged_lock(bench.send(declare(bench)), keys=[other]))
    assert max(len(it.getMessage()) for it in caplog.records) < 1000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("nonce", value) for value in (LONG, "\ud800", 7)),
        *(("handovers", value) for value in (-1, 10**400, True, "1", 1.5)),
    ],
)
def test_a_nonce_or_a_count_that_is_none_is_dropped(bench: Bench, field: str, value: Any) -> None:
    assert bench.run(forged(bench.send(declare(bench)), **{field: value})).value == "ran"


@pytest.mark.parametrize(
    "changes",
    [
        {"first_seen": END_OF_TIME},
        {"first_seen": float("nan")},
        {"first_seen": 10**400},
        {"requeues": -(10**400)},
        {"requeues": 10**400},
        {"requeues": "1"},
        {"retries": None},
    ],
)
def test_a_wait_that_none_can_have_begins_anew(bench: Bench, changes: dict[str, Any]) -> None:
    request = bench.send(job(bench))
    owned_by(bench, "other")
    waited = {"first_seen": time.time(), "requeues": 3, "retries": 0}
    assert bench.run(forged(request, **{**waited, **changes})).state == "RETRY"
    assert bench.receive()[HEADER]["requeues"] == 1


def test_a_wait_that_begins_later_begins_now(bench: Bench, warned: Warned) -> None:
    request = bench.send(job(bench))
    owned_by(bench, "other")
    bench.run(forged(request, first_seen=time.time() + HOUR, requeues=3, retries=0))
    again = bench.receive()[HEADER]
    assert (again["first_seen"] <= time.time(), again["requeues"]) == (True, 4)
    assert not warned()


@pytest.mark.parametrize("header", ["text", 7, ["list"]])
def test_a_header_that_is_none_is_ignored(bench: Bench, header: Any) -> None:
    request = {**bench.send(declare(bench)), HEADER: header}
    free(bench)
    assert bench.run(request).value == "ran"


def test_a_usual_header_is_not_warned_of(bench: Bench, warned: Warned, mode: str) -> None:
    task = declare(bench, retry_once, lock_mode=mode)
    request = bench.send(task, countdown=2 * MAX_CLOCK_SKEW, expires=3 * MAX_CLOCK_SKEW)
    with clock_off_by(2 * MAX_CLOCK_SKEW):  # the node's, too: now it is due
        bench.run(request)
        bench.run(bench.receive())
    assert not warned()


def test_a_task_with_an_endless_id_runs_once_and_retries_under_its_lock(bench: Bench) -> None:
    task = declare(bench, lambda self: retry_once(self) and value(bench))
    request = bench.send(task, task_id=LONG)
    twin = bench.send(task, task_id=LONG)
    assert bench.run(request).state == "RETRY"
    again = bench.receive()
    assert role(bench) is Role.QUEUED
    assert bench.run(twin).state == "RETRY"
    bench.receive()
    assert len(bench.run(again).value) < 2000
    assert not bench.node.state.keys.get(KEY)


def test_a_holder_with_an_endless_id_is_known_by_a_digest(bench: Bench) -> None:
    task = declare(bench)
    bench.send(task, task_id=LONG)
    holder = task.lock_holder()
    assert holder.task_id.startswith("sha256:")
    assert task.delay().id == holder.task_id


def test_a_holder_of_no_time_is_a_foreign_one(bench: Bench) -> None:
    task = declare(bench)
    bench.send(task)
    label = label_for(Role.RUNNING, "id", "w@host")
    bench.node.state.keys[KEY].owner = f"{'0' * 32} {10**30} {label}"
    assert task.lock_holder().state == "foreign"
