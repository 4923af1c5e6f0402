"""Whatever is written into a header: nothing stands for longer than the task's options say."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery.exceptions import Reject
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_redlock.errors import LockNotAcquired
from celery_redlock.protocol.node_model import StoredKey
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.envelope import HEADER, LONGEST_OWNER
from celery_redlock.tasks.message.header_values import END_OF_TIME
from celery_redlock.tasks.message.node_keys import MESSAGE
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.message.tick import LONGEST_INTERVAL
from celery_redlock.tasks.rules.facts import Role
from tests.support.cases import first_of
from tests.support.tasks import Bench
from tests.support.unique import KEY, QUEUE, WINDOW, declare
from tests.unit.tasks.jobs import ALL_MODES, raising

#: Of a task that says nothing itself.
DEFAULTS = LockOptions()
LONGEST = max(DEFAULTS.ttl, DEFAULTS.queue_ttl, WINDOW)
LONGEST_MARK = DEFAULTS.dedupe_window + LONGEST_INTERVAL
OWNER = f"{'0' * 32} 1700000000000000 {label_for(Role.QUEUED, 'id', 'p@host')}"
OTHER = f"{'1' * 32} 1700000000000000 {label_for(Role.RUNNING, 'other', 'w@host')}"

#: What JSON can spell, and more of what is nearly right than would come by chance.
# No value of a message may come to as much.
long_texts = st.integers(LONGEST_OWNER + 1, 20_000).map("x".__mul__)
ids = st.one_of(st.just("id"), st.text(st.characters(codec="utf-8"), min_size=1), long_texts)
texts = st.one_of(st.text(), long_texts, st.sampled_from(["\ud800", "n", OWNER]))
numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, True, END_OF_TIME, -1, 10**400, 2**53]),
    st.floats(-1e6, 1e6).map(lambda ahead: time.time() + ahead),
)
anything = st.one_of(st.none(), texts, numbers, st.lists(numbers), st.dictionaries(texts, numbers))
keys = st.one_of(
    st.just([KEY]), st.just([QUEUE]), st.lists(st.one_of(texts, st.just(KEY)), max_size=4), anything
)
locks = st.fixed_dictionaries(
    {},
    optional={
        "keys": keys,
        "owner": st.one_of(st.just(OWNER), anything),
        "expires_at": st.one_of(numbers, anything),
    },
)
ticks = st.fixed_dictionaries(
    {},
    optional={
        "entry": st.one_of(st.just("nightly"), anything),
        "due": st.one_of(numbers, anything),
        "schedule": anything,
        "token": anything,
        "until": st.one_of(numbers, anything),
    },
)
headers = st.fixed_dictionaries(
    {},
    optional={
        "nonce": anything,
        "lock": st.one_of(locks, anything),
        "handovers": anything,
        "first_seen": anything,
        "requeues": anything,
        "retries": st.one_of(st.just(0), anything),
        "window_until": st.one_of(numbers, anything),
        "begun": anything,
        "tick": st.one_of(ticks, anything),
    },
)

ENDS = {
    "return": lambda self: "ran",
    "retry": lambda self: self.retry(countdown=0, max_retries=1),
    "put back": raising(Reject("later", requeue=True)),
}
PLAIN = {"lock_mode": "while_executing"}
POLICIES = ("requeue", "skip", "stop", "raise")


@pytest.fixture
def requests(bench: Bench, options: dict[str, str]) -> dict[str, dict[str, Any]]:
    """A message for each end of the body."""
    task = declare(bench, lambda self, how: ENDS[how](self), **options)
    sent = {}
    for how in ENDS:
        sent[how] = bench.send(task, how)
        bench.node.state.keys.clear()
    return sent


@pytest.mark.parametrize(
    "options",
    [
        *({"lock_mode": mode} for mode in ALL_MODES),
        *first_of({**PLAIN, "lock_on_conflict": policy} for policy in POLICIES),
    ],
    ids=lambda options: "-".join(options.values()),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.one_of(headers, anything),
    how=st.sampled_from(sorted(ENDS)),
    task_id=ids,
    holder=st.sampled_from([None, OWNER, OTHER]),
)
def test_no_header_makes_anything_stand_for_longer_or_be_larger_than_the_options_say(
    bench: Bench,
    requests: dict[str, dict[str, Any]],
    header: Any,
    how: str,
    task_id: str,
    holder: str | None,
) -> None:
    state = bench.node.state
    state.keys.clear()
    if holder is not None:
        now = bench.node.now_us() // 1000
        for place in (KEY, QUEUE):
            state.keys[place] = StoredKey(holder, now + round(WINDOW * 1000))

    outcome = bench.run({**requests[how], "id": task_id, HEADER: header})

    gave_up = isinstance(outcome.value, LockNotAcquired)
    assert gave_up or outcome.state in ("SUCCESS", "RETRY", "REJECTED", "IGNORED"), outcome
    while bench.queue_length:
        bench.receive()
    now = bench.node.now_us() // 1000
    for place, stored in state.keys.items():
        assert len(stored.owner) <= LONGEST_OWNER
        longest = (
            DEFAULTS.dedupe_window + LONGEST_INTERVAL if place.startswith(MESSAGE) else LONGEST
        )
        assert stored.expires_at - now <= longest * 1000 + 1
