"""A message that is delivered twice is worked on once, whenever the second delivery comes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from celery import signals
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_redlock.core import client_of
from celery_redlock.protocol.node_model import StoredKey
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import KEY, declare, free, mark, owned_by, role, value
from tests.unit.tasks.jobs import before_next, break_broker, counting, raising, retry_once


def test_the_twin_of_a_finished_message_calls_nothing_back(bench: Bench) -> None:
    echo = bench.task(lambda value: value, name="echo")
    request = bench.send(declare(bench), link=[echo.s()])
    bench.run(request)
    bench.receive()
    bench.run(request)
    assert bench.queue_length == 0


def test_the_twin_of_a_finished_message_frees_what_was_given_back_late(bench: Bench) -> None:
    request = bench.send(declare(bench))
    reservation = Envelope.read(request).reservation
    bench.run(request)
    bench.node.state.keys[KEY] = StoredKey(reservation.owner, float("inf"))
    bench.run(request)
    assert value(bench) is None


def test_the_twin_of_a_failed_message_is_ignored(bench: Bench) -> None:
    request = bench.send(declare(bench, raising(ValueError("no"))))
    assert [bench.run(request).state for _ in range(2)] == ["FAILURE", "IGNORED"]


def test_the_twin_of_a_running_message_is_put_back_and_ignored_once_that_has_finished(
    bench: Bench, mode: str
) -> None:
    outcomes: list[Any] = []

    def body(self: Any) -> str:
        outcomes.append(bench.run(request))
        return "ran"

    request = bench.send(declare(bench, body, lock_mode=mode))
    assert bench.run(request).value == "ran"
    copy = bench.receive()
    assert [one.state for one in outcomes] == ["IGNORED"]
    assert Envelope.read(copy).nonce == Envelope.read(request).nonce
    assert bench.run(copy).state == "IGNORED"
    assert (len(outcomes), bench.queue_length) == (1, 0)


def test_a_twin_that_waits_stores_no_state_over_the_other_deliverys(bench: Bench) -> None:
    states: list[str] = []

    def body(self: Any) -> str:
        bench.run(request)
        states.append(bench.app.AsyncResult(request["id"]).state)
        return "ran"

    request = bench.send(declare(bench, body))
    bench.run(request)
    assert states == ["PENDING"]


def test_a_twin_may_wait_for_longer_than_a_task_waits_for_a_lock(bench: Bench) -> None:
    outcomes: list[Any] = []

    def body(self: Any) -> None:
        twin = request
        for _ in range(3):
            outcomes.append(bench.run(twin))
            twin = bench.receive()
            twin["redlock"]["first_seen"] -= 100

    request = bench.send(declare(bench, body, lock_give_up_after=50))
    bench.run(request)
    assert [one.state for one in outcomes] == ["IGNORED"] * 3


@pytest.mark.usefixtures("longest_delay")
def test_a_twin_comes_back_before_the_mark_of_the_other_has_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []
    monkeypatch.setattr(
        "celery_redlock.tasks.run.contention.republish",
        lambda lock_request, wait_history, delay, **_: delays.append(delay),
    )
    request = bench.send(declare(bench, lambda self: bench.run(request), lock_dedupe_window=1))
    bench.run(request)
    assert delays == [0.5]


def test_a_twin_that_comes_between_the_body_and_its_result_is_put_back(bench: Bench) -> None:
    task, runs = counting(declare, bench)
    request = bench.send(task)
    outcomes: list[Any] = []
    before_next(task.backend, "mark_as_done", lambda: outcomes.append(bench.run(request).state))
    bench.run(request)
    assert (outcomes, len(runs), bench.queue_length) == (["IGNORED"], 1, 1)


def test_the_twin_of_a_message_whose_process_died_does_the_work(bench: Bench, mode: str) -> None:
    died: list[str] = []

    def body(self: Any) -> str:
        if not died:
            died.append("once")
            raise SystemExit(1)
        return "ran"

    request = bench.send(declare(bench, body, lock_mode=mode))
    with pytest.raises(SystemExit):
        bench.run(request)
    assert bench.run(request).value == "ran"


def test_the_twin_of_a_message_that_was_killed_waits_for_its_lock_to_end(bench: Bench) -> None:
    request = bench.send(declare(bench))
    client_of(bench.elsewhere).acquire_for_task(
        ("k",),
        (mark(bench, request),),
        ttl=60,
        label=label_for(Role.RUNNING, request["id"], "dead@host"),
        reservation=Envelope.read(request).reservation,
    )
    assert bench.run(request).state == "IGNORED"
    free(bench, mark(bench, request))
    waits_for_its_key = bench.run(bench.receive())
    free(bench)
    assert waits_for_its_key.state == "RETRY"
    assert "lock 'k' is held by" in str(waits_for_its_key.value)
    assert bench.run(bench.receive()).value == "ran"


def test_a_twin_that_comes_while_another_one_ends_keeps_the_lock_that_it_brings(
    bench: Bench,
) -> None:
    request = bench.send(declare(bench))
    owned_by(bench, request["id"], Role.QUEUED, mark(bench, request))
    assert bench.run(request).state == "IGNORED"
    assert value(bench) == Envelope.read(request).reservation.owner


def test_a_retry_is_no_twin_of_the_run_before_it(bench: Bench, mode: str) -> None:
    bench.call(declare(bench, retry_once, lock_mode=mode))
    assert bench.run(bench.receive()).value == "ran"


def test_the_twin_of_a_retried_message_starts_no_second_row_of_retries(
    bench: Bench, mode: str
) -> None:
    request = bench.send(declare(bench, retry_once, lock_mode=mode))
    bench.run(request)
    assert bench.run(request).state == "IGNORED"
    assert bench.queue_length == 1


def test_the_twin_of_a_replaced_task_does_not_replace_it_again(bench: Bench) -> None:
    other = bench.task(lambda: None, name="other")
    request = bench.send(declare(bench, lambda self: self.replace(other.si())))
    bench.run(request)
    bench.run(request)
    assert bench.queue_length == 1


def test_a_task_that_ignored_itself_runs_again_when_its_message_comes_again(bench: Bench) -> None:
    task, runs = counting(declare, bench, raising(Ignore()))
    request = bench.send(task)
    bench.run(request)
    bench.run(request)
    assert len(runs) == 2


def test_the_same_id_sent_again_is_no_twin(bench: Bench) -> None:
    task = declare(bench)
    assert [bench.call(task, task_id="mine").value for _ in range(2)] == ["ran", "ran"]


def test_a_twin_that_cannot_be_put_back_returns_to_the_broker_under_late_acknowledgement(
    bench: Bench,
) -> None:
    outcome = twin_without_broker(bench, acks_late=True)
    assert isinstance(outcome.value, Reject)
    assert outcome.value.requeue is True


def test_a_twin_that_cannot_be_put_back_ends_without_a_result_under_early_acknowledgement(
    bench: Bench,
) -> None:
    assert twin_without_broker(bench, acks_late=False).state == "IGNORED"


def twin_without_broker(bench: Bench, **options: Any) -> Any:
    outcomes: list[Any] = []
    request = bench.send(
        declare(bench, lambda self: outcomes.append(bench.run(request)), **options)
    )
    break_broker(bench)
    bench.run(request)
    return outcomes[0]


@pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning")
@pytest.mark.parametrize(
    ("struck", "twin_runs"), [(SoftTimeLimitExceeded(), False), (SystemExit(1), True)]
)
def test_what_strikes_while_the_result_is_stored_decides_about_the_twin(
    bench: Bench, struck: BaseException, twin_runs: bool
) -> None:
    task, runs = counting(declare, bench)
    request = bench.send(task)
    before_next(task.backend, "mark_as_done", raising(struck))
    with contextlib.suppress(SystemExit):
        bench.run(request)
    assert value(bench) is None
    bench.run(request)
    assert len(runs) == (2 if twin_runs else 1)


def test_what_keeps_the_end_from_being_told_is_made_up_for_by_the_next_task(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = bench.send(declare(bench))
    strike = raising(SystemExit(1))
    with monkeypatch.context() as patch:
        patch.setattr(signals.task_postrun, "send", strike)
        patch.setattr("celery.app.trace.send_postrun", strike)
        with pytest.raises(SystemExit):
            bench.run(request)
    assert role(bench) is Role.RUNNING
    bench.call(declare(bench, name="next", lock_key="other"))
    assert value(bench) is None


def test_a_key_that_was_lost_to_another_stays_with_it_and_the_message_is_still_marked(
    bench: Bench,
) -> None:
    def body(self: Any) -> str:
        free(bench)
        bench.elsewhere.acquire("k", ttl=60, label="another")
        return "ran"

    request = bench.send(declare(bench, body))
    assert bench.run(request).value == "ran"
    assert str(value(bench)).endswith("another")
    assert role(bench, mark(bench, request)) is Role.FINISHED


def test_a_mark_that_was_lost_to_a_twin_stays_with_it(bench: Bench) -> None:
    def body(self: Any) -> None:
        place = mark(bench, request)
        free(bench, place)
        client_of(bench.elsewhere).acquire_for_task((), (place,), ttl=60, label="twin")

    request = bench.send(declare(bench, body))
    bench.run(request)
    assert str(value(bench, mark(bench, request))).endswith("twin")


def test_nodes_that_are_down_at_the_end_change_nothing_about_the_result(bench: Bench) -> None:
    def body(self: Any) -> str:
        bench.node.kill()
        return "ran"

    outcome = bench.call(declare(bench, body))
    assert (outcome.state, outcome.value) == ("SUCCESS", "ran")
