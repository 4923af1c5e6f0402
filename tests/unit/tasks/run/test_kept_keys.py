"""A unique task that replaces itself with several steps keeps its key until the last has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import Task, chain, chord, group, signals
from celery.app.task import Context
from celery.exceptions import Ignore, Reject

from celery_redlock import RedlockTask, is_duplicate
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import declare, holder, left, role, value
from tests.unit.tasks.jobs import raising, retry_once


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(result_backend="cache+memory://")
    yield bench
    bench.close()


def plain(bench: Bench, name: str, body: Any = None, **options: Any) -> Any:
    return bench.task(body or (lambda *args: name), name=name, base=Task, **options)


def replaced_by(bench: Bench, make: Any, **options: Any) -> Any:
    """Declare a unique task whose first run replaces itself."""

    def body(self: Any, step: int = 0) -> Any:
        return self.replace(make(self)) if step == 0 else step

    return declare(bench, body, **options)


def chained(bench: Bench, number: int, bodies: dict[str, Any] | None = None, **options: Any) -> Any:
    """Have a unique task replace itself with a chain of so many plain tasks; return all of them."""
    names = ("one", "two", "three")[:number]
    steps = [plain(bench, name, (bodies or {}).get(name)) for name in names]
    task = replaced_by(bench, lambda self: chain(*(step.s() for step in steps)), **options)
    bench.run(bench.send(task))
    return [task, *steps]


def run_all(bench: Bench) -> list[tuple[str, Role | None]]:
    """Run what is queued, one by one; return each task with the role of the key's holder then."""
    seen = []
    while bench.queue_length:
        request = bench.receive()
        seen.append((request["task"], role(bench)))
        bench.run(request)
    return seen


def test_a_chain_has_the_key_until_its_last_step_has_ended(bench: Bench) -> None:
    task, *_ = chained(bench, 2)
    found = holder(bench)
    assert task.delay().id == found.task_id
    assert run_all(bench) == [("one", Role.QUEUED), ("two", Role.QUEUED)]
    assert value(bench) is None
    assert is_duplicate(task.delay()) is False


def test_a_step_that_is_retried_keeps_the_key(bench: Bench) -> None:
    one, two = plain(bench, "one"), plain(bench, "two", retry_once, bind=True)
    bench.run(bench.send(replaced_by(bench, lambda self: chain(one.s(), two.s()))))
    assert run_all(bench) == [(name, Role.QUEUED) for name in ("one", "two", "two")]
    assert value(bench) is None


@pytest.mark.parametrize("failing", ["one", "two", "three"])
def test_a_step_that_fails_frees_the_key(bench: Bench, failing: str) -> None:
    chained(bench, 3, {failing: raising(ValueError("no"))})
    run_all(bench)
    assert value(bench) is None


@pytest.mark.parametrize(
    ("ending", "error", "runs"),
    [
        ("two", None, False),
        ("one", ValueError("no"), False),
        ("two", ValueError("no"), False),
        ("two", Reject("no", requeue=False), True),
    ],
)
def test_a_duplicate_that_had_to_be_sent_runs_only_if_the_steps_were_rejected(
    bench: Bench, ending: str, error: Exception | None, runs: bool
) -> None:
    task, *_ = chained(bench, 2, {ending: raising(error)} if error else {})
    task.apply_async((1,), task_id="another")
    first, duplicate = bench.receive(), bench.receive()
    bench.run(first)
    run_all(bench)
    assert (bench.run(duplicate).value == 1) is runs


@pytest.mark.parametrize("make", [chain, lambda tasks: chord(tasks[:1], tasks[1])])
def test_a_duplicate_that_had_to_be_sent_does_not_run_after_a_last_step_of_the_same_task(
    bench: Bench, make: Any
) -> None:
    one = plain(bench, "one")
    task = replaced_by(bench, lambda self: make([one.si(), self.si(1)]))
    bench.run(bench.send(task))
    task.apply_async((1,), task_id="another")
    first, duplicate = bench.receive(), bench.receive()
    bench.run(first)
    assert bench.run(bench.receive()).value == 1
    assert bench.run(duplicate).value != 1


@pytest.mark.parametrize("requeue", [False, True])
@pytest.mark.parametrize("rejecting", ["one", "two", "three"])
def test_a_step_whose_message_is_acknowledged_when_it_is_rejected_frees_the_key(
    bench: Bench, rejecting: str, requeue: bool
) -> None:
    chained(bench, 3, {rejecting: raising(Reject("no", requeue=requeue))})
    run_all(bench)
    assert value(bench) is None


@pytest.mark.parametrize("ending", ["one", "two"])
@pytest.mark.parametrize("error", [Reject("to its queue", requeue=True), Ignore()])
def test_a_step_that_goes_back_to_its_queue_or_ends_with_ignore_keeps_the_key(
    bench: Bench, ending: str, error: Exception
) -> None:
    _, *steps = chained(bench, 2, {ending: raising(error)})
    for step in steps:
        step.acks_late = True
    run_all(bench)
    assert role(bench) is Role.QUEUED


@pytest.mark.parametrize("replacing", ["one", "two"])
def test_a_step_that_replaces_itself_has_the_key_for_its_replacement(
    bench: Bench, replacing: str
) -> None:
    other = plain(bench, "other")

    def body(self: Any, *args: Any) -> Any:
        return self.replace(other.si()) if self.name == replacing else None

    steps = [plain(bench, name, body, bind=True) for name in ("one", "two")]
    bench.run(bench.send(replaced_by(bench, lambda self: chain(*(s.s() for s in steps)))))
    assert [held for _, held in run_all(bench)] == [Role.QUEUED] * 3


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_last_step_whose_process_ends_keeps_the_key_for_its_next_delivery(
    bench: Bench, acks_late: bool
) -> None:
    *_, two = chained(bench, 2, {"two": raising(SystemExit())})
    two.acks_late = acks_late
    with pytest.raises(SystemExit):
        run_all(bench)
    assert role(bench) is (Role.QUEUED if acks_late else None)


CANVASES = [chain, group, lambda tasks: chord(tasks, tasks[0])]


def member_of(bench: Bench, make: Any, body: Any = None) -> tuple[Any, dict[str, Any]]:
    """Have a unique task replace itself with two steps; return their task and a message of it."""
    one = plain(bench, "one", body)
    bench.run(bench.send(replaced_by(bench, lambda self: make([one.s(), one.s()]))))
    messages = [bench.receive() for _ in range(bench.queue_length)]
    assert role(bench) is Role.QUEUED
    return one, next(message for message in messages if message["task"] == "one")


@pytest.mark.parametrize("make", CANVASES)
@pytest.mark.parametrize("loss", [WorkerLostError("SIGKILL"), TimeLimitExceeded(1)])
def test_a_step_whose_process_is_lost_frees_the_key(
    bench: Bench, make: Any, loss: Exception
) -> None:
    one, message = member_of(bench, make)
    one.request_stack.push(Context(message))
    try:
        signals.task_failure.send(sender=one, task_id=message["id"], exception=loss)
    finally:
        one.request_stack.pop()
    assert value(bench) is None


@pytest.mark.parametrize("make", CANVASES)
def test_a_step_that_is_revoked_or_expires_frees_the_key(bench: Bench, make: Any) -> None:
    one, message = member_of(bench, make)
    signals.task_revoked.send(sender=one, request=Context(message))
    assert value(bench) is None


def test_a_call_of_the_task_itself_with_another_key_that_fails_frees_the_key(bench: Bench) -> None:
    one = plain(bench, "one")

    def body(self: Any, n: int) -> Any:
        if n == 0:
            return self.replace(chain(self.si(1), one.s()))
        raise ValueError("no")

    bench.run(bench.send(declare(bench, body, lock_key="{n}"), 0))
    assert role(bench, "redlock:0") is Role.QUEUED
    run_all(bench)
    assert value(bench, "redlock:0") is None


@pytest.mark.parametrize("make", CANVASES[1:])
def test_a_group_and_a_chord_have_the_key(bench: Bench, make: Any) -> None:
    _, message = member_of(bench, make)
    headers = message["chord"]["options"]["headers"]
    assert Envelope.read(headers).reservation.owner == value(bench)


@pytest.mark.parametrize("make", CANVASES[1:])
def test_a_member_that_fails_frees_the_key(bench: Bench, make: Any) -> None:
    _, message = member_of(bench, make, raising(ValueError("no")))
    bench.run(message)
    assert value(bench) is None


def test_the_rest_of_the_chain_that_the_task_is_in_runs_without_the_key(bench: Bench) -> None:
    one, two, after = (plain(bench, name) for name in ("one", "two", "after"))
    task = replaced_by(bench, lambda self: chain(one.s(), two.s()))
    chain(task.si(), after.s()).apply_async()
    assert run_all(bench)[1:] == [("one", Role.QUEUED), ("two", Role.QUEUED), ("after", None)]


def test_a_last_step_that_is_the_task_itself_takes_the_key_over(bench: Bench) -> None:
    one = plain(bench, "one")
    task = replaced_by(bench, lambda self: chain(one.si(), self.si(1)))
    bench.run(bench.send(task))
    assert run_all(bench) == [("one", Role.QUEUED), (task.name, Role.QUEUED)]
    assert value(bench) is None


def test_steps_that_lock_the_key_themselves_find_it_free(bench: Bench) -> None:
    one = plain(bench, "one")
    task = replaced_by(bench, lambda self: chain(self.si(1), one.s()))
    bench.run(bench.send(task))
    assert value(bench) is None
    assert [name for name, _ in run_all(bench)] == [task.name, "one"]


def test_a_step_that_may_lock_the_key_by_a_result_finds_it_free(bench: Bench) -> None:
    one, two = plain(bench, "one"), plain(bench, "two")
    other = declare(bench, lambda self, n: n, name="other", lock_mode="while_executing")
    bench.run(bench.send(replaced_by(bench, lambda self: chain(one.s(), other.s(), two.s()))))
    assert run_all(bench)[1] == ("other", None)


def test_a_step_that_locks_another_key_leaves_this_one(bench: Bench) -> None:
    one = plain(bench, "one")
    other = declare(bench, lambda self, n: n, name="other", lock_key="other")
    bench.run(bench.send(replaced_by(bench, lambda self: chain(other.si(1), one.s()))))
    assert role(bench) is Role.QUEUED
    run_all(bench)
    assert value(bench) is None


@pytest.mark.parametrize("options", [{"lock_key": "other"}, {"redlock_dedupe_only": True}])
def test_a_last_step_with_a_lock_or_a_marker_of_its_own_finds_the_key_free(
    bench: Bench, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    bench.app.conf.redlock_dedupe = "redlock_dedupe_only" in options
    one = plain(bench, "one")
    other = bench.task(lambda *args: None, name="other", **options)
    bench.run(bench.send(replaced_by(bench, lambda self: chain(one.s(), other.si(1)))))
    assert value(bench) is None
    assert run_all(bench) == [("one", None), ("other", None)]
    assert "the lock of the message is released" not in caplog.text


def test_a_last_step_that_ends_before_the_task_that_it_replaces_leaves_no_key(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = RedlockTask.on_replace

    def on_replace(self: Any, sig: Any) -> Any:
        try:
            return send(self, sig)
        finally:
            run_all(bench)

    monkeypatch.setattr(RedlockTask, "on_replace", on_replace)
    chained(bench, 2)
    assert value(bench) is None


def test_a_replacement_that_cannot_be_sent_leaves_the_key_free(bench: Bench) -> None:
    one = plain(bench, "one")
    one.apply_async = raising(OSError("refused"))
    task = replaced_by(bench, lambda self: chain(one.s(), one.s()))
    assert bench.run(bench.send(task)).state == "FAILURE"
    assert value(bench) is None


def test_a_key_that_no_step_releases_ends_with_lock_queue_ttl(bench: Bench) -> None:
    chained(bench, 2, lock_queue_ttl=50)
    assert 40 < left(bench) <= 51


@pytest.mark.parametrize(
    "options",
    [
        {"lock_mode": "until_expired"},
        {"lock_on_duplicate": "replace"},
        {"lock_on_duplicate": lambda task, error: "replace"},
    ],
    ids=["window", "replace", "function"],
)
def test_a_key_with_a_window_or_that_a_newer_call_may_get_is_free_while_the_steps_run(
    bench: Bench, options: dict[str, Any]
) -> None:
    chained(bench, 2, **options)
    assert value(bench) is None
