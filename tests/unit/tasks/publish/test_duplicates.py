"""What is sent while its lock is taken by a task that does the same, and what its sender gets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from celery import chain

from celery_redlock import is_duplicate
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.publish import unique_publish
from celery_redlock.tasks.rules.facts import Role
from tests.support.events import counters
from tests.support.tasks import Bench
from tests.support.unique import KEY, declare, holder, owned_by
from tests.unit.tasks.jobs import counting, raising, retry_once, sent_while_released


def test_a_duplicate_is_not_sent_and_its_result_is_the_existing_tasks(bench: Bench) -> None:
    task = declare(bench)
    first = task.delay()
    before = counters()["task_duplicate"]
    second = task.delay()
    assert (second.id, is_duplicate(second), bench.queue_length) == (first.id, True, 1)
    assert counters()["task_duplicate"] - before == 1


@pytest.mark.parametrize("answer", [None, "skip", "requeue", 7, ["existing"]])
def test_a_function_that_answers_nonsense_is_told_so(bench: Bench, answer: Any) -> None:
    task = declare(bench, lock_on_duplicate=lambda task, error: answer)
    task.delay()
    with pytest.raises(
        ConfigurationError, match="It must return one of 'existing', 'replace', 'raise'"
    ):
        task.delay()
    assert bench.queue_length == 1


def test_what_a_function_raises_reaches_the_caller(bench: Bench) -> None:
    task = declare(bench, lock_on_duplicate=lambda task, error: 1 / 0)
    task.delay()
    with pytest.raises(ZeroDivisionError):
        task.delay()


@pytest.mark.parametrize("foreign", ["canonical client", "0" * 32, f"{'0' * 32} 17 queued x"])
def test_a_lock_that_no_task_holds_drops_nothing(bench: Bench, foreign: str) -> None:
    owned_by(bench, "other")
    bench.node.state.keys[KEY].owner = foreign
    assert Envelope.read(bench.send(declare(bench))).reservation is None


def test_ignore_result_of_a_call_makes_its_duplicates_result_unreadable(bench: Bench) -> None:
    task = declare(bench)
    task.delay()
    assert task.apply_async(ignore_result=True).readable is False
    assert task.delay().readable is True


@pytest.mark.parametrize("how", ["waits", "runs", "runs under apply"])
def test_a_result_that_the_first_call_does_not_store_is_unreadable(bench: Bench, how: str) -> None:
    seen: list[bool] = []
    task = declare(bench, lambda self: seen.append(task.delay().readable))
    if how == "runs under apply":
        task.apply()
    else:
        task.apply_async(ignore_result=True)
        seen += [task.delay().readable] if how == "waits" else []
        bench.run(bench.receive())
    assert seen == [False] * len(seen) != []


def test_a_task_is_no_duplicate_of_one_that_has_only_some_of_its_keys(bench: Bench) -> None:
    owned_by(bench, "other")
    message = bench.send(declare(bench, lock_key=["k", "j"]))
    assert Envelope.read(message).reservation is None


def test_a_task_is_a_duplicate_of_one_that_has_all_of_its_keys(bench: Bench) -> None:
    owned_by(bench, "other", Role.RUNNING, KEY, "redlock:j")
    assert declare(bench, lock_key=["k", "j"]).delay().id == "other"


TIES: list[dict[str, Any]] = [
    {"task_id": "mine"},
    {"link": []},
    {"link_error": []},
    {"chord": {"task": "x"}},
    {"chain": [{"task": "x"}]},
    {"group_id": "g"},
]


@pytest.mark.parametrize("policy", ["existing", "raise"])
@pytest.mark.parametrize("tie", TIES, ids=lambda tie: next(iter(tie)))
def test_a_duplicate_that_somebody_counts_on_is_sent_without_a_lock(
    bench: Bench, tie: dict[str, Any], policy: str
) -> None:
    task = declare(bench, lock_on_duplicate=policy)
    tie = {name: value or [task.si()] for name, value in tie.items()}
    owned_by(bench, "other")
    message = bench.send(task, **tie)
    assert Envelope.read(message).reservation is None
    assert Envelope.read(message).nonce


def test_a_policy_is_not_asked_at_publish_about_a_duplicate_that_has_to_be_sent(
    bench: Bench,
) -> None:
    task = declare(bench, lock_on_duplicate=lambda task, error: 1 / 0)
    task.delay()
    task.apply_async(task_id="mine")
    assert bench.queue_length == 2


def test_a_plain_signature_is_dropped_as_a_duplicate(bench: Bench) -> None:
    task = declare(bench)
    first = task.s().delay()
    assert task.si().apply_async().id == first.id
    assert bench.queue_length == 1


@pytest.fixture
def after_a_replacement(bench: Bench) -> Callable[[Any], Any]:
    """Returns the message of a step of a chain whose first step has replaced itself."""
    leaf = bench.task(lambda: 1, name="leaf", base=None)
    first = bench.task(lambda self: self.replace(leaf.si()), name="first", base=None, bind=True)

    def message_of(step: Any) -> Any:
        chain(first.si(), step).apply_async()
        for _ in range(2):
            bench.run(bench.receive())
        return bench.receive()

    return message_of


def test_a_step_after_one_that_replaced_itself_is_a_duplicate_as_any_other(
    bench: Bench, after_a_replacement: Callable[[Any], Any]
) -> None:
    task, runs = counting(declare, bench)
    existing = bench.send(task)
    step = after_a_replacement(task.si())
    assert Envelope.read(step).duplicate_of.task_id == existing["id"]
    for message in (existing, step):
        bench.run(message)
    assert runs == [existing["id"]]


def test_a_debounced_step_after_one_that_replaced_itself_has_an_eta(
    bench: Bench, after_a_replacement: Callable[[Any], Any]
) -> None:
    task = bench.task(lambda: None, lock_key="k", lock_debounce=5)
    assert after_a_replacement(task.si())["eta"] is not None


def test_the_last_step_that_replaces_a_task_continues_it(bench: Bench) -> None:
    one = bench.task(lambda: 1, name="one", base=None)

    def body(self: Any) -> Any:
        if not self.request.replaced_task_nesting:
            return self.replace(chain(one.si(), self.s()))
        return None

    task = declare(bench, lambda self, *args: body(self))
    bench.run(bench.send(task))
    step = bench.receive()
    owned_by(bench, "other", marker="0" * 32)
    bench.run(step)
    assert Envelope.read(bench.receive()).duplicate_of is None


# A call that is sent where its sender can know that the first one has ended is no duplicate.


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a release for no longer than a moment."""
    monkeypatch.setattr(unique_publish, "RELEASE_WAIT", 0.001)


def ended(bench: Bench, task: Any) -> Any:
    """Have the key held by the first call, which has stored its result; return its lease."""
    lease = owned_by(bench, "first")
    task.backend.store_result("first", "done", "SUCCESS")
    return lease


def test_its_lock_is_taken_as_soon_as_the_first_lets_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique_publish, "RELEASE_WAIT", 60)
    task = declare(bench)
    sent = sent_while_released(task, ended(bench, task))
    assert (holder(bench).task_id, is_duplicate(sent)) == (sent.id, False)


def test_it_is_sent_without_a_lock_where_the_first_does_not_let_go(bench: Bench) -> None:
    task = declare(bench)
    ended(bench, task)
    envelope = Envelope.read(bench.send(task))
    assert (envelope.reservation, envelope.after) == (None, "first")


def test_in_the_worker_it_waits_until_the_first_lets_go(bench: Bench) -> None:
    task = declare(bench)
    lease = ended(bench, task)
    request = bench.send(task)
    assert bench.run(request).state == "RETRY"
    lease.release()
    assert bench.run(bench.receive()).value == "ran"


def test_the_result_of_an_earlier_task_with_the_same_id_says_nothing(bench: Bench) -> None:
    task = declare(bench)
    task.backend.store_result("first", "done", "SUCCESS")
    owned_by(bench, "first")
    assert task.delay().id == "first"


def test_a_result_that_nobody_wants_is_not_asked_for(bench: Bench) -> None:
    task = declare(bench, ignore_result=True)
    owned_by(bench, "first")
    task.backend = None
    assert task.delay().id == "first"


def test_a_backend_that_does_not_answer_leaves_it_a_duplicate(bench: Bench) -> None:
    task = declare(bench)
    owned_by(bench, "first")
    task.backend.get_task_meta = raising(OSError("no backend"))
    assert task.delay().id == "first"


@pytest.mark.parametrize("by", ["link", "chain"])
def test_what_a_tasks_end_sends_can_call_it_again(bench: Bench, by: str) -> None:
    task = declare(bench)
    calls: list[Any] = []
    follower = bench.task(lambda value: calls.append(task.delay().id), name="next", base=None)
    step = task.s()
    if by == "link":
        step.link(follower.s())
        step.apply_async()
    else:
        (step | follower.s()).apply_async()
    first = bench.receive()
    bench.run(first)
    following = bench.receive()
    assert following[HEADER]["after"] == first["id"]
    owned_by(bench, first["id"])
    bench.run(following)
    assert calls != [first["id"]]


def test_what_a_body_sends_is_not_sent_after_it(bench: Bench) -> None:
    follower = bench.task(lambda: None, name="next", base=None)
    bench.call(declare(bench, lambda self: follower.delay() and None))
    assert HEADER not in bench.receive()


def test_a_retry_has_not_ended(bench: Bench) -> None:
    follower = bench.task(lambda: None, name="next", base=None)
    task = declare(bench, retry_once)
    task.on_retry = lambda *args, **kwargs: follower.delay()
    bench.call(task)
    retry, other = sorted((bench.receive(), bench.receive()), key=lambda at: at["task"])
    assert (retry["task"], HEADER in other) == ("job", False)


def test_a_minimum_hold_keeps_duplicates_away_after_the_end(bench: Bench) -> None:
    task = declare(bench, lock_at_least_for=30)
    ended(bench, task)
    assert task.delay().id == "first"


def test_a_result_in_the_local_time_of_the_app_is_read_as_such(bench: Bench) -> None:
    bench.app.conf.update(timezone="America/New_York", enable_utc=False)
    task = declare(bench)
    owned_by(bench, "first")
    there = datetime.now(bench.app.timezone).replace(tzinfo=None)
    meta = {"status": "SUCCESS", "date_done": there}
    task.backend.get_task_meta = lambda *args, **kwargs: meta
    assert Envelope.read(bench.send(task)).after == "first"


def test_the_end_of_another_task_with_the_key_is_not_asked_for(bench: Bench) -> None:
    other = bench.task(lambda: None, name="other", lock_key="k", lock_mode="until_executed")
    owned_by(bench, "first", task="another")
    other.backend.get_task_meta = raising(ZeroDivisionError())
    envelope = Envelope.read(bench.send(other))
    assert (envelope.reservation, envelope.after) == (None, None)
