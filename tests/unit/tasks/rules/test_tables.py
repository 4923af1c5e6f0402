"""Facts about the tables of rules that the code around them relies on."""

from __future__ import annotations

import itertools
from dataclasses import fields
from typing import Any

import pytest

from celery_redlock.tasks.rules.arrival import Action, Arrival, on_arrival
from celery_redlock.tasks.rules.ending import IllegalMoveError, Move, State, moved
from celery_redlock.tasks.rules.facts import DuplicatePolicy, Evidence, Record

KINDS: dict[str, Any] = {"evidence": Evidence, "policy": DuplicatePolicy, "record": Record}
#: False for each message without a tick that repeats no call.
ABSENT = ("missed_deadline", "names_original", "from_leader")


def test_a_message_without_a_tick_that_repeats_no_call_takes_its_lock() -> None:
    names = [field.name for field in fields(Arrival)]
    values = [(False,) if name in ABSENT else KINDS.get(name, (False, True)) for name in names]
    for facts in itertools.product(*values):
        assert on_arrival(Arrival(**dict(zip(names, facts, strict=True)))) is Action.TAKE


@pytest.mark.parametrize("state", State)
def test_the_application_may_continue_a_task_at_any_time(state: State) -> None:
    after = moved(state, Move.CONTINUE)
    assert after is (State.CONTINUED if state is State.RUNNING else state)


def test_a_lock_is_not_handed_over_without_a_body() -> None:
    with pytest.raises(IllegalMoveError):
        moved(State.WAITING, Move.HAND_OVER)
