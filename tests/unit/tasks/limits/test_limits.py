"""Two tasks of a key with a limit run at once, in every mode, and a third one waits."""

from __future__ import annotations

import threading
from itertools import chain
from typing import Any

import pytest
from celery import chain as steps
from celery.exceptions import Retry

from celery_redlock import Limit, current_lease, is_skipped
from celery_redlock.errors import DuplicateTask, LockContended
from celery_redlock.protocol.keys import slot_number
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import MODES, WINDOW
from tests.support.waiting import TIMEOUT
from tests.unit.tasks.jobs import ALL_MODES
from tests.unit.tasks.limits.slots import LIMIT, QUEUE, limited, roles, taken

#: The modes whose bodies run under the lock.
IN_BODY = tuple(mode for mode in ALL_MODES if mode != "until_executing")
HANDED_ON = ("until_executed", "until_expired")
AT_PUBLISH = ("until_executing", "until_executed", "until_and_while_executing")


def nested(bench: Bench, requests: list[dict[str, Any]], outcomes: list[Any]) -> Any:
    """Return a body that runs the next message inside itself."""

    def body(self: Any) -> Any:
        if requests:
            outcomes.append(bench.run(requests.pop(0)))
        return self.lease.slot

    return body


def reserved_slots(request: dict[str, Any]) -> list[int | None]:
    reservation = Envelope.read(request).reservation
    return [] if reservation is None else [slot_number(key) for key in reservation.node_keys]


@pytest.mark.parametrize("mode", IN_BODY)
def test_no_more_bodies_run_at_once_than_the_limit(bench: Bench, mode: str) -> None:
    requests: list[dict[str, Any]] = []
    outcomes: list[Any] = []
    task = limited(bench, nested(bench, requests, outcomes), lock_mode=mode)
    requests += [bench.send(task) for _ in range(3)]
    last = bench.run(requests.pop(0))
    assert [outcome.state for outcome in outcomes] == ["RETRY", "SUCCESS"]
    assert sorted([outcomes[1].value, last.value]) == [0, 1]


@pytest.mark.parametrize("mode", IN_BODY)
def test_the_slots_are_free_when_the_bodies_have_ended(bench: Bench, mode: str) -> None:
    task = limited(bench, lock_mode=mode)
    for request in [bench.send(task) for _ in range(2)]:
        bench.run(request)
    left = [Role.FINISHED] * 2 if mode == "until_expired" else []
    assert (roles(bench), roles(bench, QUEUE)) == (left, [])


def test_until_executing_frees_the_slot_when_the_body_begins(bench: Bench) -> None:
    task = limited(bench, lambda self: roles(bench), lock_mode="until_executing")
    requests = [bench.send(task) for _ in range(2)]
    assert [bench.run(request).value for request in requests] == [[Role.QUEUED], []]


@pytest.mark.parametrize("mode", MODES)
def test_as_many_messages_are_reserved_as_the_limit_and_the_next_is_sent_without(
    bench: Bench, mode: str
) -> None:
    task = limited(bench, lock_mode=mode)
    requests = [bench.send(task) for _ in range(3)]
    assert sorted(chain.from_iterable(map(reserved_slots, requests))) == [0, 1]
    assert Envelope.read(requests[2]).duplicate_of is None


@pytest.mark.parametrize("mode", HANDED_ON)
def test_a_worker_takes_a_reservation_over_into_its_slot(bench: Bench, mode: str) -> None:
    task = limited(bench, lambda self: self.lease.slot, lock_mode=mode)
    requests = [bench.send(task) for _ in range(2)]
    for request in reversed(requests):
        assert [bench.run(request).value] == reserved_slots(request)


@pytest.mark.parametrize("policy", ["raise", lambda task, error: "raise"])
@pytest.mark.parametrize("mode", MODES)
def test_a_call_beyond_the_limit_is_refused_under_raise(
    bench: Bench, mode: str, policy: Any
) -> None:
    task = limited(bench, lock_mode=mode, lock_on_duplicate=policy)
    for _ in range(2):
        task.delay()
    with pytest.raises(LockContended, match="reached its limit of 2; one slot is held") as caught:
        task.delay()
    assert not isinstance(caught.value, DuplicateTask)
    assert bench.queue_length == 2


@pytest.mark.parametrize("options", [{"task_id": "mine"}, {"link": "other"}, {"retries": 1}])
def test_a_call_that_something_depends_on_is_sent_under_raise(
    bench: Bench, options: dict[str, Any]
) -> None:
    task = limited(bench, lock_on_duplicate="raise")
    if "link" in options:
        options = {"link": [bench.task(lambda: None, name="other").si()]}
    for _ in range(2):
        task.delay()
    task.apply_async(**options)
    assert bench.queue_length == 3


def test_a_step_of_a_chain_waits_for_a_slot_under_raise(bench: Bench) -> None:
    task = limited(bench, lock_on_duplicate="raise")
    steps(task.si(), task.si()).apply_async()
    request, other = bench.receive(), bench.send(task)
    bench.run(request)
    following = bench.receive()
    bench.run(other)
    assert bench.run(following).value == "ran"


@pytest.fixture
def two_hold(bench: Bench) -> list[Any]:
    """The leases of two programs, which have all slots of the key."""
    return [bench.elsewhere.acquire(Limit("k", 2), ttl=60) for _ in range(2)]


@pytest.mark.parametrize(
    ("policy", "state"), [("skip", "SUCCESS"), ("raise", "FAILURE"), ("reject", "REJECTED")]
)
def test_a_call_that_finds_all_slots_held_follows_its_policy(
    bench: Bench, two_hold: list[Any], policy: str, state: str
) -> None:
    options = {"lock_mode": "while_executing", "lock_on_conflict": policy, "acks_late": True}
    assert bench.call(limited(bench, **options)).state == state


def test_skip_skips_a_call_with_a_reserved_slot_that_finds_all_slots_held(
    bench: Bench, two_hold: list[Any]
) -> None:
    mode = "until_and_while_executing"
    task = limited(bench, lock_mode=mode, lock_on_conflict="skip")
    assert is_skipped(bench.call(task).value)


@pytest.mark.parametrize("mode", HANDED_ON)
def test_a_retry_keeps_its_slot(bench: Bench, mode: str) -> None:
    slots: list[int] = []

    def body(self: Any) -> None:
        slots.append(self.lease.slot)
        if len(slots) < 4:
            raise self.retry(countdown=1)

    task = limited(bench, body, lock_mode=mode, lock_limit=100)
    bench.call(task)
    for _ in range(3):
        bench.run(bench.receive())
    assert len(slots) == 4
    assert len(set(slots)) == 1


@pytest.mark.parametrize("mode", HANDED_ON)
def test_a_retry_that_begins_in_another_slot_leaves_none_to_nobody(bench: Bench, mode: str) -> None:
    """Its first run has yet to end, and so to hand its slot on."""

    def body(self: Any) -> None:
        if not self.request.retries:
            with pytest.raises(Retry) as raised:
                self.retry(countdown=0)
            bench.run(bench.receive())
            raise raised.value

    bench.call(limited(bench, body, lock_mode=mode))
    assert roles(bench) == ([Role.FINISHED] if mode == "until_expired" else [])


@pytest.mark.parametrize(
    "options",
    [
        {"lock_mode": "until_expired"},
        {"lock_mode": "while_executing", "lock_at_least_for": WINDOW},
    ],
    ids=["until_expired, for the window", "lock_at_least_for"],
)
def test_a_slot_is_kept_after_the_body_by(bench: Bench, options: dict[str, Any]) -> None:
    task = limited(bench, **options)
    bench.call(task)
    (usage,) = task.lock_usage()
    assert WINDOW / 2 < usage.holders[0].expires_in <= WINDOW
    assert usage.free == 1


def test_with_lock_fair_the_message_that_has_waited_longest_goes_first(
    bench: Bench, two_hold: list[Any]
) -> None:
    task = limited(bench, lock_mode="while_executing", lock_fair=True)
    waiting = []
    for request in [bench.send(task), bench.send(task)]:
        assert bench.run(request).state == "RETRY"
        waiting.append(bench.receive())
    late = bench.send(task)
    two_hold[0].release()
    assert bench.run(late).state == "RETRY"
    assert bench.run(waiting[0]).state == "SUCCESS"


def test_the_limit_of_a_call_is_that_of_its_arguments(bench: Bench) -> None:
    task = limited(bench, lambda self, n: n, lock_key="t:{n}", lock_limit=lambda n: n)
    requests = [[bench.send(task, n) for _ in range(4)] for n in (2, 3)]
    counts = [sum(len(reserved_slots(request)) for request in of_n) for of_n in requests]
    assert counts == [2, 3]


def test_a_lower_limit_lets_those_that_run_end_first(bench: Bench) -> None:
    for _ in range(3):
        bench.elsewhere.acquire(Limit("k", 3), ttl=60)
    task = limited(bench, lock_mode="while_executing", lock_on_conflict="raise")
    assert bench.call(task).state == "FAILURE"


def test_all_keys_are_taken_or_none(bench: Bench) -> None:
    keys = ["a", Limit("k", 2)]
    task = limited(bench, lock_mode="while_executing", lock_limit=None, lock_key=keys)
    held = bench.elsewhere.acquire("a", ttl=60)
    assert bench.call(task).state == "RETRY"
    assert taken(bench) == {}
    held.release()
    assert bench.run(bench.receive()).value == "ran"


def test_the_body_knows_its_slot_by_the_key(bench: Bench) -> None:
    keys = ["a", Limit("k", 1), Limit("m", 1)]

    def body(self: Any) -> list[Any]:
        return [self.lease.slots, current_lease().slot]

    task = limited(bench, body, lock_limit=None, lock_key=keys)
    assert bench.call(task).value == [{"k": 0, "m": 0}, 0]


@pytest.mark.parametrize("mode", IN_BODY)
def test_a_body_knows_the_slots_of_its_own_keys_only(bench: Bench, mode: str) -> None:
    task = limited(bench, lambda self: list(self.lease.slots), lock_mode=mode)
    assert bench.call(task).value == ["k"]


def test_the_slot_of_a_body_is_that_of_its_limit_and_not_that_of_its_rate(bench: Bench) -> None:
    """That of a rate is another's while this body still runs."""
    options = {"lock_rate": "100/s", "lock_limit": 1, "lock_mode": "until_executed"}
    task = limited(bench, lambda self: self.lease.slots, **options)
    for _ in range(3):
        assert bench.call(task).value == {"k": 0}


def test_under_apply_a_call_beyond_the_limit_waits_in_place(
    bench: Bench, two_hold: list[Any]
) -> None:
    task = limited(bench, lock_mode="while_executing", lock_wait=TIMEOUT)
    timer = threading.Timer(0.1, two_hold[0].release)
    timer.start()
    assert task.apply().get() == "ran"
    timer.join()


def test_a_task_with_a_limit_of_one_has_duplicates(bench: Bench) -> None:
    task = limited(bench, lock_limit=1)
    first = task.delay()
    assert task.delay().id == first.id


def test_a_chain_of_one_task_needs_one_slot(bench: Bench) -> None:
    task = limited(bench, lambda self: roles(bench))
    steps(task.si(), task.si()).apply_async()
    for _ in range(2):
        assert bench.run(bench.receive()).value == [Role.RUNNING]
    assert taken(bench, LIMIT) == {}


@pytest.mark.parametrize("mode", AT_PUBLISH)
def test_a_slot_above_a_lowered_limit_is_free_once_its_task_has_run(
    bench: Bench, mode: str
) -> None:
    allowed = [4]
    task = limited(bench, lock_mode=mode, lock_limit=lambda: allowed[0])
    requests = [bench.send(task) for _ in range(4)]
    allowed[0] = 1
    for request in sorted(requests, key=reserved_slots):
        assert bench.run(request).state == "SUCCESS"
    assert (taken(bench), taken(bench, QUEUE)) == ({}, {})


def test_a_message_that_waits_below_a_lowered_limit_has_its_slot_when_it_is_raised(
    bench: Bench,
) -> None:
    allowed = [3]
    task = limited(bench, lambda self: self.lease.slot, lock_limit=lambda: allowed[0])
    upper = sorted([bench.send(task) for _ in range(3)], key=reserved_slots)[-1]
    allowed[0] = 2
    assert bench.run(upper).state == "RETRY"
    allowed[0] = 3
    assert bench.run(bench.receive()).value == 2
