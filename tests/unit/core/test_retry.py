"""Trying again: what is tried again, for how long, by whose policy. Time passes only when told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from tenacity import AsyncRetrying, Retrying, stop_after_attempt, wait_fixed

from celery_redlock import ConfigurationError, Redlock
from celery_redlock.core import client_of
from celery_redlock.core.attempt import AcquireParams, Attempt
from celery_redlock.core.settings import (
    DEFAULT_POLICY,
    RetryPolicy,
    checked_policy,
    client_settings,
)
from celery_redlock.core.waiting import (
    SPLIT_BUDGET,
    After,
    Listen,
    RetryOptions,
    Step,
    Steps,
    in_thread,
    retries,
)
from celery_redlock.protocol.commands import Command, Waiter
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.rounds import AcquireRound
from celery_redlock.protocol.votes import Failed, Granted, KeyHolder, Refused, Vote
from celery_redlock.transport.memory import VirtualTime

HELD: list[Vote] = [Refused((KeyHolder(0, "other", 5.0),))] * 3
SPLIT: list[Vote] = [Refused((KeyHolder(0, str(node), 5.0),)) for node in range(5)]
DOWN: list[Vote] = [Failed("refused")] * 3
LEFT_OUT: list[Vote] = [Failed("refused lately", attempted=False)] * 3
OURS: list[Vote] = [Granted(1, 1)] * 3


PARAMS = AcquireParams(
    settings=client_settings(5, ttl=10.0, guard=False),
    keys=(Key.of("redlock:", "key"),),
    ttl=10.0,
    label="",
)


def attempt(votes: Sequence[Vote]) -> Attempt:
    round_ = AcquireRound(5, sent_at=0.0, ttl=10.0, drift_factor=0.01)
    for node, vote in enumerate(votes):
        round_.vote(node, vote, 0.0)
    return Attempt(PARAMS, "owner", round_, None, frozenset())  # type: ignore[arg-type]


@dataclass
class Trial:
    """A series of attempts that all end alike, but for the last that is given."""

    votes: list[Vote]
    ours_after: int | None = None
    time: VirtualTime = field(default_factory=VirtualTime)
    pauses: list[float] = field(default_factory=list)
    made: int = 1
    counted: int = 0

    def again(self) -> Attempt:
        self.made += 1
        granted = self.ours_after is not None and self.made > self.ours_after
        return attempt(OURS if granted else self.votes)

    def run(self, wait: float, policy: RetryPolicy = DEFAULT_POLICY) -> Attempt:
        options = RetryOptions(seconds=wait, policy=policy, listens=False)
        steps = retries(self.time, options, attempt(self.votes))  # type: ignore[arg-type]
        reply: Attempt | bool | None = None
        try:
            while True:
                step = steps.send(reply)
                reply = self.again() if isinstance(step, AcquireParams) else self.pause(step)
        except StopIteration as end:
            last: Attempt
            last, self.counted = end.value
            return last

    def pause(self, step: Step) -> bool:
        assert isinstance(step, float)
        self.pauses.append(step - self.time.now())
        self.time.sleep(self.pauses[-1])
        return False


@pytest.mark.parametrize("votes", [HELD, DOWN], ids=["contended", "unavailable"])
def test_without_patience_a_decided_attempt_is_the_only_one(votes: list[Vote]) -> None:
    trial = Trial(votes)
    assert not trial.run(0.0).is_granted
    assert trial.made == 1


@pytest.mark.parametrize("votes", [SPLIT, LEFT_OUT], ids=["split", "nodes left out"])
def test_an_undecided_attempt_is_repeated_for_a_small_budget_even_without_patience(
    votes: list[Vote],
) -> None:
    trial = Trial(votes)
    assert not trial.run(0.0).is_granted
    assert trial.made > 2
    assert trial.counted == trial.made
    assert sum(trial.pauses) == pytest.approx(SPLIT_BUDGET)


def test_a_split_that_turns_into_a_conflict_ends_there() -> None:
    trial = Trial(SPLIT)
    outcomes = iter([attempt(SPLIT), attempt(HELD), attempt(OURS)])
    trial.again = lambda: next(outcomes)  # type: ignore[method-assign]
    assert trial.run(0.0).round.holder() == KeyHolder(0, "other", 5.0)


def test_patience_is_used_up_and_the_last_attempt_is_made_at_its_end() -> None:
    trial = Trial(HELD)
    assert not trial.run(3.0).is_granted
    assert sum(trial.pauses) == pytest.approx(3.0)


def test_success_ends_the_waiting() -> None:
    trial = Trial(HELD, ours_after=3)
    assert trial.run(60.0).is_granted
    assert trial.made == 4


def test_pauses_are_jittered_and_grow_from_10_ms_to_250_ms() -> None:
    trials = [Trial(HELD) for _ in range(30)]
    for trial in trials:
        trial.run(5.0)
    first = [trial.pauses[0] for trial in trials]
    later = [pause for trial in trials for pause in trial.pauses[8:-1]]
    assert max(first) <= 0.01
    assert 0.2 < max(later) <= 0.25
    assert len(set(first)) > 20


def test_a_wait_of_ones_own_decides_the_pauses() -> None:
    trial = Trial(HELD)
    trial.run(1.0, wait_fixed(0.4))
    assert trial.pauses == pytest.approx([0.4, 0.4, 0.2])


def test_a_whole_retrying_can_stop_earlier() -> None:
    trial = Trial(HELD)
    trial.run(60.0, Retrying(wait=wait_fixed(0.1), stop=stop_after_attempt(3)))
    assert trial.made == 3


def test_a_whole_retrying_cannot_outstay_the_patience() -> None:
    trial = Trial(HELD)
    trial.run(1.0, Retrying(wait=wait_fixed(0.1)))
    assert sum(trial.pauses) == pytest.approx(1.0)


class RecordedTime(VirtualTime):
    """Virtual time of one node, with the names of the waiters that it is asked to forget."""

    names = ("node",)

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[str] = []

    def send_behind(self, channel: object, command: Command, nodes: Sequence[int]) -> None:
        assert command.forgets_a_waiter
        self.forgotten.append(str(command.args[3]))


def drive(steps: Steps, time: VirtualTime, *, is_live: bool, takes: float) -> list[Waiter]:
    """Carry the steps out; others refuse each attempt. Return the waiters of the attempts."""
    asked: list[Waiter] = []
    replies: dict[type, Callable[[Any], object]] = {
        AcquireParams: lambda params: asked.append(params.waiter) or attempt(HELD),
        Listen: lambda _: SimpleNamespace(is_live=is_live),
        float: lambda until: time.sleep(max(0.0, until - time.now())),
    }
    step = next(steps)
    with contextlib.suppress(StopIteration):
        while True:
            reply = replies[type(step)](step)
            time.sleep(takes if isinstance(step, AcquireParams) else 0.0)
            step = steps.send(reply)
    return asked


def test_nodes_forget_a_call_whose_time_ends_during_an_attempt() -> None:
    time = RecordedTime()
    options = RetryOptions(seconds=1.0, policy=wait_fixed(0.068))  # the tenth attempt is at 0.98 s
    steps = retries(time, options, attempt(HELD))  # type: ignore[arg-type]
    asked = drive(steps, time, is_live=False, takes=0.03)
    assert (asked[0].keep_ms, asked[-1].keep_ms) == (1000, 20)
    assert time.forgotten == [asked[0].name]


@pytest.mark.parametrize("seconds", [0.3, 5.0])
def test_a_call_that_listens_ends_soon_once_waiting_cannot_help(seconds: float) -> None:
    time = RecordedTime()
    begun = time.now()
    options = RetryOptions(
        seconds=seconds,
        policy=DEFAULT_POLICY,
        decide=lambda _: After.WAIT if time.now() - begun < 0.09 else After.END,
    )
    steps = retries(time, options, attempt(HELD))  # type: ignore[arg-type]
    drive(steps, time, is_live=True, takes=0.0)
    assert time.now() - begun == pytest.approx(0.1)


def test_a_call_that_listens_and_decides_pauses_for_as_long_as_it_has_waited() -> None:
    time = RecordedTime()
    options = RetryOptions(seconds=5.0, policy=DEFAULT_POLICY, decide=lambda _: After.WAIT)
    steps = retries(time, options, attempt(HELD))  # type: ignore[arg-type]
    asked = drive(steps, time, is_live=True, takes=0.0)
    left = [waiter.keep_ms for waiter in asked]
    assert left == [5000, 4950, 4900, 4800, 4600, 4200, 3400, 2400, 1400, 400, 0]


def test_an_error_in_an_attempt_ends_the_waiting(redlock: Redlock) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    transport = client_of(redlock).transport
    options = RetryOptions(seconds=5.0, policy=DEFAULT_POLICY)
    with pytest.raises(KeyboardInterrupt):
        in_thread(retries(transport, options, attempt(HELD)), transport, interrupt)


def test_something_else_is_no_retry_policy(redlock: Redlock) -> None:
    with pytest.raises(ConfigurationError, match=r"tenacity\.Retrying, not int"):
        redlock.acquire("key", retry=3)  # type: ignore[arg-type]


def test_a_policy_for_an_event_loop_is_no_retry_policy() -> None:
    with pytest.raises(ConfigurationError, match=r"tenacity\.Retrying, not AsyncRetrying"):
        checked_policy(AsyncRetrying())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ttl", 0.1),
        ("max_ttl", -5),
        ("drift_factor", 0.5),
        ("drift_factor", "0.1"),
        ("node_timeout", 0),
        ("retry", "often"),
        ("key_prefix", None),
        ("key_prefix", "redlock-meta:"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_its_name(option: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=option):
        Redlock("memory://settings", **{option: value})  # type: ignore[arg-type]
