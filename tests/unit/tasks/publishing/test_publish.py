"""Sending a unique task: its lock, what its message carries, and what a duplicate comes to."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Task, chain, chord, group
from kombu.exceptions import EncodeError, OperationalError

from celery_redlock import Redlock, RedlockTask
from celery_redlock.errors import ConfigurationError, DuplicateTask, LockContended, LockKeyError
from celery_redlock.signals import counters
from celery_redlock.tasks.messages.duplicates import DuplicateResult
from celery_redlock.tasks.messages.envelope import HEADER, Envelope
from celery_redlock.tasks.messages.owners import Role, label_for, read_owner
from celery_redlock.tasks.publishing import publish as publishing
from celery_redlock.tasks.publishing import sending
from tests.support.tasks import Bench
from tests.support.waiting import wait_until

KEY = "redlock:k"


def declare(bench: Bench, **options: Any) -> Any:
    options = {"lock_key": "k", "lock_mode": "until_executed", **options}
    return bench.task(lambda *args, **kwargs: "done", **options)


def owner(bench: Bench, place: str = KEY) -> str:
    return bench.node.state.keys[place].owner


def left(bench: Bench, place: str = KEY) -> float:
    return (bench.node.state.keys[place].expires_at - bench.node.now_us() // 1000) / 1000


def envelope(message: dict[str, Any]) -> Envelope:
    return Envelope.read(message)


def held_by(bench: Bench, role: Role, task_id: str = "other") -> str:
    """Let another task have the lock."""
    lease = bench.elsewhere.take(("k",), ttl=30, label=label_for(role, task_id, "w@host"))
    return lease.owner


def test_a_task_that_another_thread_is_about_to_bind_is_sent_with_its_lock(bench: Bench) -> None:
    task = declare(bench)
    # Not of the proxy, whose class all tasks share.
    cls = type(task._get_current_object())
    # As Celery shows it to other threads before the one that has made it has bound it.
    cls.redlock_plan = None
    cls.redlock_planned = False
    assert envelope(bench.send(task)).reservation is not None


def test_the_message_carries_the_lock_that_was_taken_for_it(bench: Bench) -> None:
    result = declare(bench).delay()
    message = bench.receive()
    lock = envelope(message).reservation
    assert lock is not None
    assert (lock.keys, lock.owner) == ((KEY,), owner(bench))
    named = read_owner(lock.owner)
    assert named is not None
    assert (named.role, named.task_id) == (Role.QUEUED, result.id)
    assert message["id"] == result.id


def test_the_result_of_a_task_that_was_sent_is_a_plain_one(bench: Bench) -> None:
    result = declare(bench).delay()
    assert not getattr(result, "is_duplicate", False)


def test_every_publish_has_a_nonce_of_its_own(bench: Bench) -> None:
    task = bench.task(lambda n: None, name="numbered", lock_key="{n}", lock_mode="until_executed")
    nonces = {envelope(bench.send(task, n)).nonce for n in range(5)}
    assert len(nonces) == 5
    assert "" not in nonces


def test_the_lock_lasts_for_the_grace_until_the_message_is_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = declare(bench, lock_publish_grace=4)
    seen: list[float] = []
    send = bench.app.send_task

    def look(*args: Any, **options: Any) -> Any:
        seen.append(left(bench))
        return send(*args, **options)

    monkeypatch.setattr(bench.app, "send_task", look)
    task.delay()
    assert 0 < seen[0] <= 4


def test_the_lock_is_lengthened_once_the_message_is_out(bench: Bench) -> None:
    declare(bench, lock_queue_ttl=90).delay()
    wait_until(lambda: left(bench) > 60, message="it was not lengthened")
    assert left(bench) <= 90


def test_the_lock_of_a_later_task_lasts_until_it_is_due_and_may_wait_then(bench: Bench) -> None:
    declare(bench).apply_async(countdown=7200)
    wait_until(lambda: left(bench) > 7200 + 3000, message="it was not lengthened")


def test_a_queue_key_of_its_own_leaves_the_lock_to_a_running_task(bench: Bench) -> None:
    task = declare(bench, lock_mode="until_and_while_executing")
    held_by(bench, Role.RUNNING)
    lock = envelope(bench.send(task)).reservation
    assert lock is not None
    assert lock.keys == ("redlock-meta:queued:redlock:k",)


def test_a_window_travels_with_the_message(bench: Bench) -> None:
    task = declare(bench, lock_mode="until_expired", lock_window=500)
    until = envelope(bench.send(task)).window_until
    assert until is not None
    assert 0 < until - time.time() <= 500


def test_a_task_that_locks_while_it_executes_takes_nothing_at_publish(bench: Bench) -> None:
    task = declare(bench, lock_mode="while_executing")
    assert HEADER not in (bench.send(task))
    assert not bench.is_held("k")


def test_a_duplicate_is_not_sent_and_its_result_is_the_existing_tasks(bench: Bench) -> None:
    task = declare(bench)
    first = task.delay()
    second = task.delay()
    assert (second.id, second.is_duplicate) == (first.id, True)
    assert isinstance(second, DuplicateResult)
    assert bench.queue_length == 1


def test_a_duplicate_of_a_running_task_points_at_it(bench: Bench) -> None:
    held_by(bench, Role.RUNNING, "runner")
    assert declare(bench).delay().id == "runner"


def test_a_duplicate_is_counted(bench: Bench) -> None:
    task = declare(bench)
    before = counters()["task_duplicate"]
    for _ in range(3):
        task.delay()
    assert counters()["task_duplicate"] - before == 2


def test_calls_with_other_keys_are_no_duplicates(bench: Bench) -> None:
    task = bench.task(lambda n: None, lock_key="{n}", lock_mode="until_executed")
    task.delay(1)
    task.delay(2)
    assert bench.queue_length == 2


def test_positional_named_and_defaulted_calls_are_duplicates_of_each_other(bench: Bench) -> None:
    def body(a: int, b: int = 2) -> None: ...

    task = bench.task(body, lock_mode="until_executed")
    ids = {task.delay(1).id, task.delay(a=1).id, task.delay(1, b=2).id}
    assert (len(ids), bench.queue_length) == (1, 1)


def test_policy_raise_refuses_a_duplicate_and_names_the_existing_task(bench: Bench) -> None:
    task = declare(bench, lock_on_conflict="raise")
    first = task.delay()
    with pytest.raises(DuplicateTask, match="is queued already") as caught:
        task.delay()
    assert caught.value.task_id == first.id
    assert caught.value.result.id == first.id
    assert bench.queue_length == 1


def test_a_function_decides_with_the_task_and_the_error(bench: Bench) -> None:
    asked: list[Any] = []

    def decide(task: Any, error: Any) -> str:
        asked.append((task.name, error.key))
        return "raise"

    task = declare(bench, lock_on_conflict=decide)
    task.delay()
    with pytest.raises(DuplicateTask):
        task.delay()
    assert asked == [("job", "k")]


@pytest.mark.parametrize("answer", [None, "skip", "requeue", 7, ["existing"]])
def test_a_function_that_answers_nonsense_is_told_so(bench: Bench, answer: Any) -> None:
    task = declare(bench, lock_on_conflict=lambda task, error: answer)
    task.delay()
    with pytest.raises(ConfigurationError, match="It returns one of 'existing', 'raise', 'replac"):
        task.delay()
    assert bench.queue_length == 1


def test_what_a_function_raises_reaches_the_caller(bench: Bench) -> None:
    def decide(task: Any, error: Any) -> str:
        raise ZeroDivisionError

    task = declare(bench, lock_on_conflict=decide)
    task.delay()
    with pytest.raises(ZeroDivisionError):
        task.delay()


class TestReplace:
    @pytest.fixture
    def revoked(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        revoked: list[str] = []
        monkeypatch.setattr(bench.app.control, "revoke", revoked.append)
        return revoked

    def test_a_queued_task_gives_its_lock_to_the_newer_one(
        self, bench: Bench, revoked: list[str]
    ) -> None:
        task = declare(bench, lock_on_conflict="replace")
        first, second = task.delay(), task.delay()
        named = read_owner(owner(bench))
        assert named is not None
        assert (named.task_id, revoked) == (second.id, [first.id])
        assert not getattr(second, "is_duplicate", False)
        bench.receive()
        lock = envelope(bench.receive()).reservation
        assert lock is not None
        assert lock.owner == owner(bench)

    def test_the_lock_of_the_newer_one_lasts_as_long_as_any(
        self, bench: Bench, revoked: list[str]
    ) -> None:
        task = declare(bench, lock_on_conflict="replace")
        task.delay()
        task.delay()
        wait_until(lambda: left(bench) > 3000, message="it was not lengthened")

    def test_also_a_newer_one_with_an_id_of_its_own(self, bench: Bench, revoked: list[str]) -> None:
        task = declare(bench, lock_on_conflict="replace")
        first = task.delay()
        task.apply_async(task_id="mine")
        assert revoked == [first.id]
        named = read_owner(owner(bench))
        assert named is not None
        assert named.task_id == "mine"

    def test_a_message_does_not_replace_an_earlier_one_of_its_own_id(
        self, bench: Bench, revoked: list[str]
    ) -> None:
        task = declare(bench, lock_on_conflict="replace")
        task.apply_async(task_id="mine")
        task.apply_async(task_id="mine")
        assert (bench.queue_length, revoked) == (2, [])

    @pytest.mark.parametrize("option", ["retries", "replaced_task_nesting"])
    def test_work_that_has_begun_does_not_replace_what_was_sent_later(
        self, bench: Bench, revoked: list[str], option: str
    ) -> None:
        task = declare(bench, lock_on_conflict="replace")
        task.delay()
        task.apply_async(task_id="begun", **{option: 1})
        assert (bench.queue_length, revoked) == (2, [])

    def test_a_running_task_is_left_alone_and_the_newer_one_waits(
        self, bench: Bench, revoked: list[str]
    ) -> None:
        running = held_by(bench, Role.RUNNING)
        message = bench.send(declare(bench, lock_on_conflict="replace"))
        assert (owner(bench), revoked) == (running, [])
        assert envelope(message).reservation is None

    def test_a_finished_tasks_window_cannot_be_replaced(
        self, bench: Bench, revoked: list[str]
    ) -> None:
        held_by(bench, Role.FINISHED, "finished")
        assert declare(bench, lock_on_conflict="replace").delay().id == "finished"
        assert (bench.queue_length, revoked) == (0, [])

    def test_the_older_one_gets_its_lock_back_if_the_newer_one_cannot_be_sent(
        self, bench: Bench, revoked: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = declare(bench, lock_on_conflict="replace")
        task.delay()
        older = owner(bench)
        break_broker(bench, monkeypatch)
        with pytest.raises(OperationalError):
            task.delay()
        assert (owner(bench), revoked) == (older, [])
        assert left(bench) > 5

    def test_a_revoke_that_fails_does_not_disturb_the_publish(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(task_id: str) -> None:
            raise OSError("no broadcast")

        monkeypatch.setattr(bench.app.control, "revoke", fail)
        task = declare(bench, lock_on_conflict="replace")
        task.delay()
        task.delay()
        assert "could not be revoked: OSError" in caplog.text
        assert bench.queue_length == 2


TIES: list[dict[str, Any]] = [
    {"task_id": "mine"},
    {"link": []},
    {"chord": {"task": "x"}},
    {"chain": [{"task": "x"}]},
    {"group_id": "g"},
]


@pytest.mark.parametrize("policy", ["existing", "raise"])
@pytest.mark.parametrize("tie", TIES, ids=lambda tie: next(iter(tie)))
def test_a_duplicate_that_somebody_counts_on_is_sent_without_a_lock(
    bench: Bench, tie: dict[str, Any], policy: str
) -> None:
    task = declare(bench, lock_on_conflict=policy)
    tie = {"link": [task.si()]} if "link" in tie else tie
    held_by(bench, Role.RUNNING)
    message = bench.send(task, **tie)
    assert envelope(message).reservation is None
    assert envelope(message).nonce


def test_an_error_callback_ties_a_duplicate_too(bench: Bench) -> None:
    task = declare(bench)
    held_by(bench, Role.RUNNING)
    task.apply_async(link_error=task.si())
    assert bench.queue_length == 1


def test_a_policy_is_not_asked_at_publish_about_a_duplicate_that_has_to_be_sent(
    bench: Bench,
) -> None:
    task = declare(bench, lock_on_conflict=lambda task, error: 1 / 0)
    task.delay()
    task.apply_async(task_id="mine")
    assert bench.queue_length == 2


@pytest.mark.parametrize("canvas", [group, chain, chord], ids=lambda canvas: canvas.__name__)
def test_no_member_of_a_canvas_is_dropped(bench: Bench, canvas: Any) -> None:
    task = declare(bench)
    bench.app.conf.result_backend_thread_safe = True
    members = [task.si(), task.si(), task.si()]
    if canvas is chord:
        chord(members, task.si(), app=bench.app).apply_async()
    else:
        canvas(*members, app=bench.app).apply_async()
    assert bench.queue_length == (1 if canvas is chain else 3)


def test_a_plain_signature_is_dropped_as_a_duplicate(bench: Bench) -> None:
    task = declare(bench)
    first = task.s().delay()
    assert task.si().apply_async().id == first.id
    assert bench.queue_length == 1


@pytest.mark.parametrize("foreign", ["canonical client", "0" * 32, f"{'0' * 32} 17 queued x"])
def test_a_lock_that_no_task_holds_drops_nothing(bench: Bench, foreign: str) -> None:
    bench.elsewhere.take(("k",), ttl=30)
    key = bench.node.state.keys[KEY]
    bench.node.state.keys[KEY] = type(key)(foreign, key.expires_at)
    assert envelope(bench.send(declare(bench))).reservation is None


def break_broker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise OperationalError("broker is down")

    monkeypatch.setattr(bench.app.amqp, "send_task_message", fail, raising=False)


def test_a_publish_that_fails_frees_the_lock_and_reaches_the_caller(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = declare(bench)
    break_broker(bench, monkeypatch)
    with pytest.raises(OperationalError):
        task.delay()
    assert not bench.is_held("k")


def test_arguments_that_cannot_be_sent_free_the_lock(bench: Bench) -> None:
    task = bench.task(lambda thing: None, lock_key="k", lock_mode="until_executed")
    with pytest.raises(EncodeError):
        task.delay(object())
    assert not bench.is_held("k")


def test_arguments_that_do_not_fit_are_refused_in_celerys_words(bench: Bench) -> None:
    task = bench.task(lambda a: None, lock_mode="until_executed")
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        task.delay()
    with pytest.raises(TypeError, match="must be a list or tuple"):
        task.apply_async({1})


def test_a_task_written_as_a_class_is_unique_too(bench: Bench) -> None:
    class Invoice(RedlockTask):
        name = "invoice"
        lock_key = "{order}"
        lock_mode = "until_executed"

        def run(self, order: int) -> None: ...

    task = bench.app.register_task(Invoice())
    assert task.delay(1).id == task.delay(order=1).id
    assert bench.queue_length == 1
    with pytest.raises(LockKeyError, match="do not fit its signature"):
        task.delay()


def test_arguments_that_nobody_checks_make_no_key(bench: Bench) -> None:
    task = bench.task(lambda a: None, lock_mode="until_executed", typing=False)
    with pytest.raises(LockKeyError, match="do not fit its signature"):
        task.delay()


def test_a_key_function_that_fails_reaches_the_caller_and_nothing_is_sent(bench: Bench) -> None:
    task = bench.task(lambda a: None, lock_key=lambda a: 1 / a, lock_mode="until_executed")
    with pytest.raises(LockKeyError, match="failed: ZeroDivisionError"):
        task.delay(0)
    assert bench.queue_length == 0


def test_without_a_quorum_it_is_sent_without_its_lock_and_says_so(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    task = declare(bench)
    bench.node.kill()
    before = counters()["task_unlocked"]
    with caplog.at_level(logging.WARNING):
        message = bench.send(task)
    assert envelope(message).reservation is None
    assert "is sent without its lock" in caplog.text
    assert counters()["task_unlocked"] - before == 1


def test_a_publish_that_outlasts_the_grace_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = declare(bench)
    readings = iter([100.0, 111.0])
    clock = SimpleNamespace(time=time.time, monotonic=lambda: next(readings))
    monkeypatch.setattr(sending, "time", clock)
    task.delay()
    assert "took 11.0 s, longer than lock_publish_grace=10" in caplog.text


def test_a_message_that_has_our_header_already_passes_untouched(bench: Bench) -> None:
    task = declare(bench)
    task.delay()
    bench.receive()
    header = Envelope(nonce="again").write()
    again = bench.send(task, headers={HEADER: header}, task_id="again")
    assert again[HEADER] == header


def test_other_headers_stay(bench: Bench) -> None:
    message = bench.send(declare(bench), headers={"trace": "abc"})
    assert message["trace"] == "abc"
    assert envelope(message).reservation is not None


def test_headers_may_be_pairs_as_celery_takes_them(bench: Bench) -> None:
    message = bench.send(declare(bench), headers=[("trace", "abc")])
    assert message["trace"] == "abc"


def test_stamps_travel_beside_the_lock(bench: Bench) -> None:
    declare(bench).s().stamp(tenant="acme").apply_async()
    message = bench.receive()
    assert "acme" in message["stamps"]["tenant"]
    assert envelope(message).reservation is not None


def test_a_message_that_is_sent_by_name_takes_no_lock(bench: Bench) -> None:
    declare(bench)
    bench.app.send_task("job")
    assert HEADER not in bench.receive()
    assert not bench.is_held("k")


def test_a_task_that_is_handed_on_takes_no_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = declare(bench)
    handed = Handed()
    monkeypatch.setattr(publishing, "handed_on", handed)
    message = bench.send(task, task_id="running")
    assert envelope(message).hop == 3
    assert handed.asked == ("running", (KEY,))
    assert (handed.told, bench.is_held("k")) == (True, False)


def test_a_hand_over_that_cannot_be_sent_is_not_told_to_the_holder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = declare(bench)
    handed = Handed()
    monkeypatch.setattr(publishing, "handed_on", handed)
    break_broker(bench, monkeypatch)
    with pytest.raises(OperationalError):
        task.apply_async(task_id="running")
    assert handed.told is False


class Handed:
    """Stands for a running body that has the lock."""

    envelope = Envelope(nonce="n", hop=3)
    told = False
    asked: tuple[str, tuple[str, ...]]

    def __call__(self, task_id: str, places: tuple[str, ...], expires_at: float) -> Handed:
        self.asked = (task_id, places)
        return self

    def sent(self) -> None:
        self.told = True


def test_eager_tasks_take_their_lock_when_they_run(bench: Bench) -> None:
    bench.app.conf.task_always_eager = True
    assert declare(bench).delay().get() == "done"


def test_an_adopted_class_keeps_its_own_apply_async(bench: Bench) -> None:
    class Theirs(Task):
        abstract = True
        sent = 0

        def apply_async(self, *args: Any, **options: Any) -> Any:
            type(self).sent += 1
            return super().apply_async(*args, **options)

    options = {"lock_key": "k", "lock_mode": "until_executed"}
    bench.app.conf.redlock_tasks = {"theirs": options}
    task = bench.task(lambda: None, base=Theirs, name="theirs")
    bench.app.finalize()
    first, second = task.delay(), task.delay()
    assert (second.id, type(bench.app.tasks["theirs"]).sent) == (first.id, 2)
    assert bench.queue_length == 1


def test_ignore_result_of_a_call_makes_its_duplicates_result_unreadable(bench: Bench) -> None:
    task = declare(bench)
    task.delay()
    assert task.apply_async(ignore_result=True).readable is False
    assert task.delay().readable is True


def test_a_task_without_options_is_sent_as_any_other(bench: Bench) -> None:
    task = bench.task(lambda: None, base=RedlockTask)
    assert HEADER not in bench.send(task)


def test_while_nothing_is_decided_it_is_sent_without_its_lock_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def undecided(*_: Any, **__: Any) -> None:
        raise LockContended("several contenders share the nodes", "k", "x", 1.0, True)

    task = declare(bench)
    monkeypatch.setattr(Redlock, "reserve", undecided)
    before = counters()["task_unlocked"]
    with caplog.at_level(logging.WARNING):
        result = task.delay()
    message = bench.receive()
    assert (envelope(message).reservation, message["id"]) == (None, result.id)
    assert "sent without its lock" in caplog.text
    assert counters()["task_unlocked"] == before + 1


def test_a_task_is_no_duplicate_of_one_that_has_only_some_of_its_keys(bench: Bench) -> None:
    held_by(bench, Role.RUNNING)
    message = bench.send(declare(bench, lock_key=["k", "j"]))
    assert envelope(message).reservation is None


def test_a_task_is_a_duplicate_of_one_that_has_all_of_its_keys(bench: Bench) -> None:
    bench.elsewhere.take(("j", "k"), ttl=30, label=label_for(Role.RUNNING, "other", "w@host"))
    assert declare(bench, lock_key=["k", "j"]).delay().id == "other"


def test_a_task_that_waits_is_not_replaced_for_some_of_its_keys(bench: Bench) -> None:
    holder = held_by(bench, Role.QUEUED)
    bench.send(declare(bench, lock_key=["k", "j"], lock_on_conflict="replace"))
    assert owner(bench) == holder


def test_what_follows_a_task_is_sent_though_its_arguments_make_no_key(bench: Bench) -> None:
    task = bench.task(lambda a: None, lock_key=lambda a: 1 / a, lock_mode="until_executed")
    message = bench.send(task, 0, link=bench.task(lambda *_: None, name="next").s())
    assert envelope(message).reservation is None
