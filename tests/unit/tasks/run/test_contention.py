"""What a task does whose lock is taken, or whose lock nodes do not answer."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import chain, signature
from celery.app.task import Context
from celery.exceptions import Ignore, Reject

from celery_redlock.errors import (
    ConfigurationError,
    LockContended,
    LockNotAcquired,
    QuorumUnavailable,
)
from celery_redlock.protocol.keys import QUORUM, owner_value
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.tasks.run import requeue
from celery_redlock.tasks.run.case import Case
from celery_redlock.tasks.run.contention import resolve
from celery_redlock.tasks.run.lock_request import LockRequest, lock_request_for
from celery_redlock.tasks.run.requeue import FIRST_DELAY
from celery_redlock.tasks.run.running_lock import RunningLock
from tests.support.tasks import Bench
from tests.unit.tasks.jobs import break_broker, job, occupy, raising, retry_once


def requeued(bench: Bench, request: dict[str, Any], **changes: Any) -> dict[str, Any]:
    outcome = bench.run(request, **changes)
    assert outcome.state == "RETRY", outcome
    return bench.receive()


def waited(seconds: float, requeues: int) -> dict[str, Any]:
    """Return the headers of a message that was requeued so often in so many seconds."""
    return {HEADER: {"first_seen": time.time() - seconds, "requeues": requeues, "retries": 0}}


def test_a_requeued_message_keeps_everything_that_celery_carries(bench: Bench) -> None:
    task = job(bench)
    echo = bench.task(lambda value: value, name="echo")
    other = bench.task(lambda value: value, name="other")
    occupy(bench)
    request = bench.send(
        task,
        "argument",
        link=[echo.s()],
        link_error=[other.s()],
        chain=[echo.s()],
        chord=signature(echo.s()),
        group_id="group",
        group_index=3,
        expires=1000,
        time_limit=90,
        soft_time_limit=60,
        priority=4,
        root_id="root",
        parent_id="parent",
        shadow="shadow",
        headers={"tenant": "acme"},
        stamped_headers=["stamp"],
        stamp="value",
        ignore_result=True,
    )
    again = requeued(bench, request)
    varies = {"eta", "properties"}
    assert {name: again.get(name) for name in request if name not in varies} == {
        name: value for name, value in request.items() if name not in varies
    }


def test_hops_are_counted_from_the_first_time_the_task_was_seen(bench: Bench) -> None:
    occupy(bench)
    first = requeued(bench, bench.send(job(bench)))
    second = requeued(bench, first)
    assert (first[HEADER]["requeues"], second[HEADER]["requeues"]) == (1, 2)
    assert first[HEADER]["first_seen"] == second[HEADER]["first_seen"]


@pytest.mark.parametrize("limits", [{}, {"lock_limit": 2}, {"lock_rate": "1/h"}], ids=str)
def test_a_message_waits_in_its_process_until_it_expires(
    bench: Bench, waits: list[float], limits: dict[str, Any]
) -> None:
    bench.run(bench.send(job(bench, lock_wait=600, **limits), expires=60))
    assert 0 < waits[0] <= 60


@pytest.mark.usefixtures("longest_delay")
@pytest.mark.parametrize(("visibility", "longest"), [(None, 900.0), (40, 20.0), (36000, 900.0)])
def test_the_delay_stays_below_half_the_visibility_timeout(
    bench: Bench, visibility: float | None, longest: float
) -> None:
    bench.app.conf.broker_transport_options = {"visibility_timeout": visibility}
    occupy(bench)
    assert bench.run(bench.send(job(bench)), headers=waited(0, 30)).value.when == longest


@pytest.mark.usefixtures("longest_delay")
@pytest.mark.parametrize(("expires", "longest"), [(100, 100.0), (10, 30.0)])
def test_a_message_that_expires_comes_back_soon_after(
    bench: Bench, expires: int, longest: float
) -> None:
    occupy(bench)
    outcome = bench.run(bench.send(job(bench), expires=expires))
    assert outcome.value.when == pytest.approx(longest, abs=5)


@pytest.mark.usefixtures("longest_delay")
def test_the_last_delay_ends_with_the_patience(bench: Bench) -> None:
    occupy(bench)
    request = bench.send(job(bench, lock_give_up_after=100))
    assert 0 < bench.run(request, headers=waited(90, 30)).value.when <= 10


def test_the_last_delay_leaves_time_to_store_that_the_message_returns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    occupy(bench)
    monkeypatch.setattr(requeue, "remaining_wait", lambda _: 0.01)
    assert bench.call(job(bench)).value.when == requeue.SHORTEST_DELAY


def test_a_task_gives_up_when_its_patience_is_used_up(bench: Bench) -> None:
    occupy(bench)
    request = bench.send(job(bench, lock_give_up_after=100))
    outcome = bench.run(request, headers=waited(101, 7))
    assert type(outcome.value) is LockNotAcquired
    assert "lock_give_up_after = 100 s (tried again 7 times)" in str(outcome.value)
    assert bench.queue_length == 0


@pytest.mark.parametrize(
    "change",
    [
        {"retries": 1},
        {"delivery_info": {"redelivered": True, "exchange": "", "routing_key": "q"}},
    ],
    ids=["a retry", "a redelivery"],
)
def test_patience_begins_anew_with(bench: Bench, change: dict[str, Any]) -> None:
    occupy(bench)
    request = bench.send(job(bench, lock_give_up_after=100))
    assert bench.run(request, **{"headers": waited(101, 7), **change}).state == "RETRY"


def test_a_retry_of_the_tasks_own_does_not_carry_the_header_on(bench: Bench) -> None:
    holder = occupy(bench)
    request = requeued(bench, bench.send(job(bench, retry_once), headers={"tenant": "acme"}))
    holder.release()
    again = requeued(bench, request)
    assert HEADER not in again
    assert again["tenant"] == "acme"


def test_a_failed_requeue_returns_the_message_under_late_acknowledgement(bench: Bench) -> None:
    occupy(bench)
    task = job(bench, acks_late=True)
    request = bench.send(task)
    break_broker(bench)
    outcome = bench.run(request)
    assert isinstance(outcome.value, Reject)
    assert outcome.value.requeue is True


def test_a_failed_requeue_is_a_failure_under_early_acknowledgement(bench: Bench) -> None:
    occupy(bench)
    request = bench.send(job(bench))
    break_broker(bench)
    outcome = bench.run(request)
    assert type(outcome.value) is LockNotAcquired
    assert "could not be requeued: OperationalError('broker down')" in str(outcome.value)


def test_a_requeued_message_keeps_its_serializer_and_its_compression(bench: Bench) -> None:
    occupy(bench)
    request = bench.send(job(bench), compression="zlib")
    request["properties"]["content_type"] = "application/x-python-serialize"
    bench.run({**request, "args": [object()]})
    again = bench.take()
    assert again.content_type == "application/x-python-serialize"
    assert again.headers["compression"] == request["compression"]


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_message_that_cannot_be_encoded_again_fails_and_does_not_circle(
    bench: Bench, acks_late: bool
) -> None:
    occupy(bench)
    request = bench.send(job(bench, acks_late=acks_late), 1)
    outcome = bench.run({**request, "args": [object()]})
    assert type(outcome.value) is LockNotAcquired
    assert "Set the task's serializer" in str(outcome.value)


@pytest.mark.usefixtures("quick_pauses")
def test_under_apply_a_task_waits_in_place(bench: Bench) -> None:
    holder = bench.elsewhere.acquire("k", ttl=5)
    assert job(bench).apply().get() == "ran"
    assert holder.lost


SPLIT = LockContended("split", "k", "half", 1.0, True)


@pytest.mark.parametrize(
    ("met", "waits_for"),
    [
        (QuorumUnavailable("quarantined", "k", {}, 7.5), ()),
        (QuorumUnavailable("away", "k"), (QUORUM,)),
        (SPLIT, ("redlock:k",)),
    ],
    ids=["nothing in a quarantine", "a quorum in an outage", "all of its keys in a split vote"],
)
def test_a_message_that_is_put_back_waits_for(
    bench: Bench, client: Any, met: Exception, waits_for: tuple[str, ...]
) -> None:
    request = bench.send(job(bench, acks_late=True))
    client.acquire_for_task = raising(met)
    assert Envelope.read(requeued(bench, request)).waits_for == waits_for


@pytest.mark.parametrize(
    "options",
    [
        {"lock_on_conflict": "skip"},
        {"lock_on_conflict": "reject"},
        {"lock_mode": "until_executed"},
    ],
    ids=str,
)
def test_a_split_vote_is_put_back_and_never_given_up_for_another(
    bench: Bench, client: Any, options: dict[str, Any]
) -> None:
    request = bench.send(job(bench, acks_late=True, **options))
    client.acquire_for_task = raising(SPLIT)
    assert bench.run(request).state == "RETRY"


HANDED_OVER = LockContended("held", "k", "1 1 running other w 1", 30.0, False, ["k"])


@pytest.mark.parametrize(
    ("met", "least", "most"),
    [(QuorumUnavailable("quarantined", "k", {}, 7.5), 7.5, 8.5), (HANDED_OVER, 0, FIRST_DELAY)],
    ids=["when the quarantine ends that it has met", "soon if its lock is handed over to it"],
)
def test_a_message_returns(
    bench: Bench, client: Any, met: Exception, least: float, most: float
) -> None:
    request = bench.send(job(bench, lock_mode="until_executed", acks_late=True))
    client.acquire_for_task = raising(met)
    assert least < bench.run(request).value.when <= most


def test_a_withdrawn_message_takes_over_its_marker_once_though_each_node_shows_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = job(bench, lock_mode="until_executed", acks_late=True)
    request = bench.send(task)
    tries: list[str] = []

    def contended(lock_request: LockRequest, over: LockContended | None = None) -> Any:
        tries.append("" if over is None else over.holder or "")
        raise withdrawn(lock_request, f"marker {len(tries)}")

    def withdrawn(lock_request: LockRequest, marker: str) -> LockContended:
        owner = owner_value(marker.encode(), 1, label_for(Role.REVOKED, "id"))
        return LockContended("split", lock_request.dedupe_key, owner, 1.0, True)

    monkeypatch.setattr(LockRequest, "acquire_marker", contended)
    context = Context(request, called_directly=False)
    task.request_stack.push(context)
    try:
        lock_request = lock_request_for(task, context, task.redlock_plan, (), {})
        case = Case(running_lock=RunningLock(lock_request), error=withdrawn(lock_request, "first"))
        with pytest.raises(Ignore):
            resolve(case)
    finally:
        task.request_stack.pop()
    assert len(tries) == 1
    assert bench.receive()["id"] == request["id"]


def test_a_message_that_is_acknowledged_already_is_not_rejected_but_fails(bench: Bench) -> None:
    occupy(bench)
    outcome = bench.call(job(bench, lock_on_conflict=lambda task, error: "reject"))
    assert isinstance(outcome.value, LockContended)


@pytest.mark.parametrize("place", ["member", "first step of a member"])
def test_a_chord_member_is_not_rejected_but_fails(bench: Bench, place: str) -> None:
    occupy(bench)
    task = job(bench, lock_on_conflict="reject", acks_late=True)
    echo = bench.task(lambda value=None: value, name="echo")
    header = task.si() if place == "member" else chain(task.si(), echo.si())
    request = {**bench.send(task), "chord": echo.s()}
    if place != "member":
        header.tasks[1].set(chord=echo.s(), task_id="next")
        request = {**request, "chord": None, "chain": [dict(header.tasks[1])]}
    assert isinstance(bench.run(request).value, LockContended)


def test_a_conflict_function_may_replace_the_task(bench: Bench) -> None:
    other = bench.task(lambda: None, name="other")
    occupy(bench)
    outcome = bench.call(
        job(bench, lock_on_conflict=lambda task, error: task.replace(other.si())), "argument"
    )
    assert outcome.state == "IGNORED", outcome


def test_a_function_decides_with_the_task_and_the_conflict(bench: Bench) -> None:
    asked: list[Any] = []

    def decide(task: Any, error: LockContended) -> str:
        asked.append((task.name, task.request.args, error.key))
        return "skip"

    occupy(bench)
    outcome = bench.call(job(bench, lock_on_conflict=decide), "argument")
    assert (outcome.state, asked) == ("SUCCESS", [("job", ["argument"], "k")])


def test_an_error_of_a_function_that_decides_is_named(bench: Bench) -> None:
    occupy(bench)
    raised = bench.call(job(bench, lock_on_conflict=lambda task, error: 1 / 0), "argument").value
    assert isinstance(raised, ZeroDivisionError)
    (note,) = raised.__notes__
    assert note.startswith("lock_on_conflict of task job raised this when asked about: Lock 'k'")


def test_a_function_that_returns_no_policy_is_a_configuration_error(bench: Bench) -> None:
    occupy(bench)
    outcome = bench.call(job(bench, lock_on_conflict=lambda task, error: "drop"))
    assert isinstance(outcome.value, ConfigurationError)
    assert "returned 'drop'" in str(outcome.value)
