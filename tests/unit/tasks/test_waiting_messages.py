"""A worker starts a message that waits when it is woken, and each message once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.request import Request
from kombu import Message
from kombu.asynchronous.timer import Timer

from celery_redlock import Limit
from celery_redlock.core import Client, client_of
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol.keys import QUORUM, in_header, pause_of, wake_channel
from celery_redlock.protocol.votes import Failed
from celery_redlock.tasks import waiting_messages
from celery_redlock.tasks.busy_worker import BusyWorker
from celery_redlock.tasks.message.envelope import HEADER, Envelope, WaitHistory
from celery_redlock.tasks.waiting_messages import (
    AT_ETA,
    LOOKS_EVERY,
    SETTLING,
    WaitingMessages,
    WakeStep,
)
from celery_redlock.transport import Listener
from tests.support.tasks import Bench
from tests.support.waiting import wait_until

KEY = "redlock:key"
CHANNEL = wake_channel(KEY)


def request_of(app: Any, name: str, eta: float, priority: int = 0) -> Request:
    """Return a message's request, as Celery makes it in a worker."""
    due = datetime.now(UTC) + timedelta(seconds=eta)
    message = Message(
        body='[[], {}, {"chord": null}]',
        headers={"id": name, "task": "job", "eta": due.isoformat()},
        content_type="application/json",
        content_encoding="utf-8",
        properties={"priority": priority},
    )
    return Request(message, app=app, task=app.Task())


class Worker:
    """The consumer of a worker whose timers fire when the test says so."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.timer = Timer()
        self.pool = SimpleNamespace(num_processes=1, limit=0)
        self.controller = None
        self.started: list[str] = []
        self.waiting = WaitingMessages(self)

    def start(self, request: Request) -> None:
        """What Celery's timer calls at the ETA of a message."""
        self.started.append(request.id)

    def receive(
        self,
        name: str,
        *,
        key: str = KEY,
        keys: tuple[str, ...] = (),
        since: float = 1.0,
        eta: float = 60.0,
        priority: int = 0,
        returns: int = 0,
    ) -> Any:
        """Receive a requeued message as Celery does: the signal first, then the timer."""
        request = request_of(self.app, name, eta, priority)
        history = WaitHistory(first_seen=since, requeues=1, retries=0)
        envelope = Envelope(wait_history=history, waits_for=keys or (key,), returns=returns)
        self.waiting.add(request, envelope)
        request._eta_timer_entry = self.timer.call_at(
            time.monotonic() + eta, self.start, (request,)
        )
        return request

    def fire(self) -> None:
        """Let the timers fire that are due."""
        for wait, entry in self.timer:
            if entry is None:
                return
            assert wait is None
            entry()

    def fire_until(self, condition: Callable[[], Any]) -> None:
        """Let timers fire until this is so."""
        wait_until(lambda: self.fire() or condition(), message=lambda: f"started: {self.started}")


def name_of(held: waiting_messages.Held) -> str:
    return held.waiter.name


@pytest.fixture
def worker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker that asks no node."""
    monkeypatch.setattr(WaitingMessages, "_look", lambda *_: None)
    found = Worker(bench.app)
    yield found
    found.waiting.close()


def settle(worker: Worker, *started: str) -> None:
    """Wait until these have been started."""
    worker.fire_until(lambda: worker.started == list(started))


def started(worker: Worker) -> list[str]:
    """Return what has been started when a message starts that was woken after all others."""
    worker.receive("last")
    worker.waiting.on_wake("last", CHANNEL)
    worker.fire_until(lambda: "last" in worker.started)
    worker.started.remove("last")
    return worker.started


def test_a_message_that_is_woken_starts_and_no_other(worker: Worker) -> None:
    worker.receive("other")
    worker.receive("a")
    worker.waiting.on_wake("a", CHANNEL)
    settle(worker, "a")


def test_a_message_starts_once(worker: Worker) -> None:
    worker.receive("a", eta=SETTLING + 3 * AT_ETA)
    worker.waiting.on_wake("a", CHANNEL)
    settle(worker, "a")
    at_eta = time.monotonic() + SETTLING + 3 * AT_ETA
    worker.fire_until(lambda: time.monotonic() > at_eta)
    assert worker.started == ["a"]


def test_a_message_whose_eta_has_come_is_not_started_again(worker: Worker) -> None:
    worker.receive("a", eta=0.0)
    settle(worker, "a")
    worker.waiting.on_wake("a", CHANNEL)
    assert started(worker) == ["a"]


def test_a_message_that_returns_to_its_queue_is_not_started(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[str] = []

    def returns(_: Any, request: Request) -> bool:
        returned.extend({request.id} & {"a"})
        return request.id == "a"

    monkeypatch.setattr(BusyWorker, "returns", returns)
    worker.receive("a")
    worker.waiting.on_wake("a", CHANNEL)
    assert started(worker) == []
    assert returned == ["a"]


@pytest.mark.parametrize(("processes", "begins"), [(0, ["soon"]), (1, [])], ids=["busy", "idle"])
def test_a_busy_worker_does_not_wait_for_the_eta_of_a_message(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, processes: int, begins: list[str]
) -> None:
    monkeypatch.setattr(waiting_messages, "SETTLING", 0.0)
    monkeypatch.setattr(BusyWorker, "returns", lambda *_: False)
    worker.pool.num_processes = processes
    worker.receive("soon", eta=LOOKS_EVERY)
    worker.receive("later")
    worker.waiting._look_at_next()
    assert started(worker) == begins


def test_a_message_that_has_returned_starts_at_once(worker: Worker) -> None:
    worker.receive("other")
    worker.receive("a", returns=1)
    settle(worker, "a")


def test_a_message_whose_timer_was_cancelled_is_not_started(worker: Worker) -> None:
    worker.receive("a")._eta_timer_entry.cancel()
    worker.waiting.on_wake("a", CHANNEL)
    assert started(worker) == []


def test_with_celery_before_5_7_it_is_found_among_all_timers(worker: Worker) -> None:
    worker.receive("other")
    worker.receive("a")._eta_timer_entry = None
    worker.waiting.on_wake("a", CHANNEL)
    settle(worker, "a")


def test_what_all_nodes_publish_starts_a_message_once(worker: Worker) -> None:
    worker.receive("a")
    for _ in range(5):
        worker.waiting.on_wake("a", CHANNEL)
    assert started(worker) == ["a"]


def test_a_message_does_not_start_before_its_last_run_has_ended(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(waiting_messages, "SETTLING", 50.0)
        worker.receive("a")
    worker.waiting.on_wake("a", CHANNEL)
    assert started(worker) == []


def test_a_message_does_not_start_while_the_worker_ends_its_last_run(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way = end_of_last_run(worker, monkeypatch)
    worker.receive("a")
    worker.waiting.on_wake("a", CHANNEL)
    assert started(worker) == []
    under_way.clear()
    settle(worker, "a")


def test_a_start_that_is_put_off_is_repeated_by_one_timer(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_of_last_run(worker, monkeypatch)
    worker.receive("a")
    for _ in range(3):
        worker.waiting.on_wake("a", CHANNEL)
    started(worker)
    put_off = [e for e in worker.timer.queue if e.entry.fun == worker.waiting._start_put_off]
    assert len(put_off) == 1


def end_of_last_run(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """Let the worker have a request with the id "a" until what is returned is empty."""
    earlier = request_of(worker.app, "a", 0.0, 0)
    under_way = {earlier}
    monkeypatch.setattr(waiting_messages.worker_state, "requests", {"a": earlier})
    monkeypatch.setattr(waiting_messages.worker_state, "active_requests", under_way)
    return under_way


def test_a_worker_that_ends_starts_nothing(worker: Worker) -> None:
    worker.receive("a")
    worker.waiting.close()
    worker.waiting.on_wake("a", CHANNEL)
    others = (worker.start, worker.waiting._look_at_next, worker.waiting._look_after_wake_ups)
    assert not [entry for entry in worker.timer.queue if entry.entry.fun not in others]


def test_a_message_that_a_closed_worker_has_kept_for_a_moment_is_not_started(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_messages, "SETTLING", 3600.0)
    worker.receive("a")
    worker.waiting.on_wake("a", CHANNEL)
    worker.fire()
    worker.waiting.close()
    (left,) = (e.entry for e in worker.timer.queue if e.entry.fun == worker.waiting._start_put_off)
    (held,) = worker.waiting._held
    object.__setattr__(held, "starts_from", 0.0)  # its moment has passed
    left()
    assert worker.started == []


def test_an_error_of_one_message_does_not_keep_the_next_from_starting(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_messages, "SETTLING", 0.0)
    worker.receive("broken")._eta_timer_entry.fun = None
    worker.receive("a")
    worker.waiting.on_wake("broken", CHANNEL)
    worker.waiting.on_wake("a", CHANNEL)
    settle(worker, "a")


def test_messages_whose_time_has_come_are_forgotten(worker: Worker) -> None:
    worker.receive("over", eta=0.0)
    worker.receive("a")
    settle(worker, "over")
    worker.waiting.prune()
    assert list(map(name_of, worker.waiting._held)) == ["a"]


@pytest.mark.parametrize("retries", [0, 1])
def test_a_retry_with_the_header_of_the_run_before_it_is_not_woken(
    worker: Worker, retries: int
) -> None:
    history = WaitHistory(first_seen=1.0, requeues=1, retries=0)
    header = Envelope(wait_history=history, waits_for=(KEY,)).write()
    request = request_of(worker.app, "a", 60.0)
    request.request_dict.update({HEADER: header, "retries": retries})
    step = WakeStep(None)
    step._waiting = worker.waiting
    step._received(worker, request)
    assert worker.waiting.is_listening is (retries == 0)


def test_a_worker_listens_while_it_keeps_messages(worker: Worker) -> None:
    worker.receive("over", eta=0.0)
    assert worker.waiting.is_listening
    settle(worker, "over")
    worker.waiting.prune()
    assert not worker.waiting.is_listening
    worker.receive("a")
    assert worker.waiting.is_listening


# A worker looks at the keys of messages that nodes may have forgotten.


@pytest.fixture
def late(bench: Bench) -> Iterator[Worker]:
    found = Worker(bench.app)
    yield found
    found.waiting.close()


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let a worker look for keys that are free when this is called, and not before."""
    looks: list[Callable[[], None]] = []
    monkeypatch.setattr(waiting_messages, "start_thread", lambda run, _: looks.append(run))
    return lambda: looks.pop()()


def first_started(worker: Worker) -> str:
    """Wait until a message has been started, and return which."""
    worker.fire_until(lambda: worker.started)
    return worker.started[0]


def test_a_message_whose_key_is_free_already_starts(late: Worker) -> None:
    late.receive("a")
    settle(late, "a")


def test_a_message_of_a_free_key_starts_although_another_one_has_its_id(
    late: Worker, look: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_messages.worker_state, "requests", requests := {})
    kept = []
    for _ in range(2):
        kept.append(late.receive("a"))
        requests["a"] = kept[-1]  # as Celery 5.7 notes what it keeps
    late.waiting.on_wake("a", CHANNEL)
    settle(late, "a")
    look()
    settle(late, "a", "a")


def test_of_a_free_key_only_the_oldest_message_starts(
    late: Worker, look: Callable[[], None]
) -> None:
    late.receive("young", since=2.0)
    late.receive("old", since=1.0)
    look()
    assert first_started(late) == "old"


def test_of_a_free_key_the_message_with_the_most_urgent_priority_starts(
    late: Worker, look: Callable[[], None]
) -> None:
    late.receive("old", since=1.0, priority=4)
    late.receive("urgent", since=2.0, priority=5)
    look()
    assert first_started(late) == "urgent"


@pytest.fixture
def held(bench: Bench) -> Any:
    """Another program's lease of the key, until the end of the test."""
    return bench.elsewhere.acquire("key")


def test_a_message_enters_its_wait_queue_again_with_its_priority(
    late: Worker, bench: Bench, look: Callable[[], None], held: Any
) -> None:
    now = time.time()
    late.receive("old", since=now - 1)
    late.receive("urgent", since=now, priority=5)
    look()
    assert bench.node.state.waiting[KEY].first(2) == ["urgent", "old"]


def test_a_message_that_was_revoked_does_not_enter_its_wait_queue_again(
    late: Worker, bench: Bench, look: Any, held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late.receive("revoked")
    late.receive("other")
    monkeypatch.setattr(waiting_messages, "is_revoked", lambda request: request.id == "revoked")
    look()
    assert bench.node.state.waiting[KEY].first(2) == ["other"]


@pytest.mark.parametrize("taken", ["held", "paused"])
def test_a_message_whose_key_is_taken_waits(late: Worker, bench: Bench, taken: str) -> None:
    if taken == "held":
        bench.elsewhere.acquire("key", ttl=60)
        late.receive("a")
    else:
        bench.elsewhere.pause("key", 60)
        receive_paused(late, "a")
    wait_until(lambda: late.waiting.has_looked)
    late.fire()
    assert late.started == []


def test_of_a_limited_key_as_many_messages_start_as_slots_are_free(
    late: Worker, bench: Bench, look: Callable[[], None]
) -> None:
    bench.elsewhere.acquire(Limit("key", 3))
    slots = in_header(client_of(bench.elsewhere).key_of(Limit("key", 3)))
    for since, name in enumerate(("first", "second", "third")):
        late.receive(name, key=slots, since=since)
    look()
    settle(late, "first", "second")


def test_a_message_that_arrives_is_put_back_into_its_wait_queue(
    late: Worker, bench: Bench, held: Any
) -> None:
    late.receive("a")
    wait_until(lambda: late.waiting.has_looked)
    woken: list[str] = []
    transport = client_of(bench.elsewhere).transport
    listener = Listener(
        transport.wake_ups, [CHANNEL], lambda name, _: woken.append(name), lambda: None
    )
    held.release()
    wait_until(lambda: woken)
    listener.close()
    assert set(woken) == {"a"}


def test_a_message_that_has_begun_is_not_looked_at(late: Worker, look: Callable[[], None]) -> None:
    late.receive("begun", since=1.0, eta=AT_ETA / 2)
    late.receive("asleep", since=2.0)
    look()
    assert first_started(late) in ("asleep", "begun")
    late.fire_until(lambda: "asleep" in late.started)


def test_all_messages_that_wait_for_a_quorum_start_when_it_replies(
    late: Worker, look: Callable[[], None]
) -> None:
    late.receive("a", key=QUORUM, since=1.0)
    late.receive("b", key=QUORUM, since=2.0)
    look()
    settle(late, "a", "b")


def test_messages_that_wait_for_a_quorum_do_not_start_while_nodes_take_no_lock(
    late: Worker, look: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # They may answer all the same, as a server that is out of memory does.
    refused = SimpleNamespace(votes=[Failed("OOM")] * 3, needed=2)
    monkeypatch.setattr(waiting_messages, "poll_nodes", lambda *_: refused)
    late.receive("a", key=QUORUM)
    look()
    late.fire()
    assert late.started == []


def test_keys_that_cannot_be_read_hide_no_others(
    late: Worker, look: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_messages, "INSPECTED_AT_ONCE", 1)
    inspect = Client.inspect

    def fail(client: Client, node_keys: Sequence[str], **options: Any) -> Any:
        if "redlock:bad" in node_keys:
            raise QuorumUnavailable("too many", "bad", {})
        return inspect(client, node_keys, **options)

    monkeypatch.setattr(Client, "inspect", fail)
    for key in ("bad", "good", "other"):
        late.receive(key, key=f"redlock:{key}")
    look()
    wait_until(lambda: late.fire() or len(late.started) == 2)
    assert sorted(late.started) == ["good", "other"]


def test_an_event_loop_does_not_keep_what_was_cancelled_until_its_time(worker: Worker) -> None:
    entries = [worker.timer.call_at(time.monotonic() + 900, print) for _ in range(3)]
    for entry in entries[:2]:
        entry.cancel()
    worker.waiting.use_hub(
        SimpleNamespace(add_reader=lambda *_: None, remove_reader=lambda *_: None)
    )
    worker.waiting._look_at_next()
    assert [scheduled.entry for scheduled in worker.timer.schedule._queue] == entries[2:]


def test_after_a_wake_up_a_worker_looks_whether_anybody_has_come(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(waiting_messages, "LOOKS_EVERY", 600.0)
    worker.receive("ours")
    monkeypatch.setattr(waiting_messages, "STALLED_AFTER", 0.0)
    monkeypatch.setattr(WaitingMessages, "_look", lambda _, held: looked.extend(map(name_of, held)))
    worker.waiting.on_wake("gone", CHANNEL)
    worker.fire_until(lambda: looked)
    assert looked == ["ours"]


def test_a_worker_looks_at_intervals_for_holders_that_died(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(waiting_messages, "LOOKS_EVERY", 0.01)
    monkeypatch.setattr(WaitingMessages, "_look", lambda _, held: looked.extend(map(name_of, held)))
    worker.receive("a")
    worker.fire_until(lambda: looked.count("a") > 2)


def test_a_message_that_is_revoked_starts_to_end(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.receive("revoked")
    worker.receive("other")
    monkeypatch.setattr(waiting_messages, "is_revoked", lambda request: request.id == "revoked")
    worker.waiting._look_at_next()
    assert started(worker) == ["revoked"]


@pytest.mark.parametrize(
    ("key", "seconds", "starts"),
    [(KEY, 31.0, ["old"]), (KEY, 29.0, []), (pause_of(KEY), 31.0, [])],
    ids=["after half a minute", "not before", "not while its key is paused"],
)
def test_a_message_tries_although_its_key_does_not_look_free(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, key: str, seconds: float, starts: list[str]
) -> None:
    worker.receive("old", key=key, eta=900.0)
    passed = time.monotonic() + seconds
    with monkeypatch.context() as patch:
        patch.setattr(waiting_messages, "time", SimpleNamespace(monotonic=lambda: passed))
        worker.receive("new", eta=900.0)
        worker.waiting._look_at_next()
    assert started(worker) == starts


def test_few_of_many_messages_try_at_once_and_all_in_turn(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_messages, "TRIES_AFTER", -1.0)
    names = [f"m{at}" for at in range(waiting_messages.TRIES_AT_ONCE + 1)]
    for name in names:
        worker.receive(name)
    worker.waiting._look_at_next()
    worker.fire_until(lambda: len(worker.started) >= waiting_messages.TRIES_AT_ONCE)
    assert worker.started == names[:-1]


def test_it_looks_at_all_keys_within_half_a_minute(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: set[str] = set()
    monkeypatch.setattr(waiting_messages, "LOOKS_AT_ONCE", 1)
    monkeypatch.setattr(WaitingMessages, "_look", lambda _, held: looked.update(map(name_of, held)))
    for at in range(100):
        worker.receive(f"m{at}", key=f"redlock:{at}")
    looked.clear()
    for _ in range(math.floor(30 / LOOKS_EVERY)):
        worker.waiting._look_at_next()
    assert len(looked) == 100


def test_of_many_keys_it_looks_at_some_in_turn(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(waiting_messages, "LOOKS_AT_ONCE", 1)
    for at in range(3):
        worker.receive(f"m{at}", key=f"redlock:{at}")
    monkeypatch.setattr(WaitingMessages, "_look", lambda _, held: looked.extend(map(name_of, held)))
    for at in range(4):
        worker.waiting._look_at_next()
        worker.receive(f"new{at}", key=f"redlock:new{at}")
    assert [name for name in looked if not name.startswith("new")] == ["m0", "m1", "m2", "m0"]


def receive_paused(worker: Worker, *names: str) -> None:
    for since, name in enumerate(names):
        worker.receive(name, keys=(KEY, pause_of(KEY)), since=since)


def test_when_the_pause_is_over_the_oldest_one_starts(
    late: Worker, look: Callable[[], None]
) -> None:
    receive_paused(late, "old", "young")
    look()
    settle(late, "old")


def test_where_they_wait_for_nothing_else_all_start(late: Worker, look: Callable[[], None]) -> None:
    for since, name in enumerate(("a", "b", "c")):
        late.receive(name, key=pause_of(KEY), since=since)
    look()
    settle(late, "a", "b", "c")
