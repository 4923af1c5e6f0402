"""Trying again: what is tried again, for how long, by whose policy. Time passes only when told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import pytest
from tenacity import AsyncRetrying, Retrying, stop_after_attempt, wait_fixed

from celery_redlock import ConfigurationError, Redlock
from celery_redlock.core.attempt import Attempt
from celery_redlock.core.retry import (
    DEFAULT_WAIT,
    SPLIT_BUDGET,
    RetryBudget,
    RetryPolicy,
    checked_policy,
    retry_until_granted,
    retry_until_granted_async,
)
from celery_redlock.protocol import AcquireRound, Failed, Granted, KeyHolder, Refused, Vote
from celery_redlock.transport.memory import VirtualTime

HELD: list[Vote] = [Refused((KeyHolder(0, "other", 5.0),))] * 3
SPLIT: list[Vote] = [Refused((KeyHolder(0, str(node), 5.0),)) for node in range(5)]
DOWN: list[Vote] = [Failed("refused")] * 3
LEFT_OUT: list[Vote] = [Failed("refused lately", attempted=False)] * 3
OURS: list[Vote] = [Granted(1, 1)] * 3


def attempt(votes: Sequence[Vote]) -> Attempt:
    round_ = AcquireRound(5, sent_at=0.0, ttl=10.0, drift_factor=0.01)
    for node, vote in enumerate(votes):
        round_.vote(node, vote, 0.0)
    return Attempt("owner", round_, None, frozenset())  # type: ignore[arg-type]


@dataclass
class Trial:
    """A series of attempts that all end alike, but for the last that is given."""

    votes: list[Vote]
    ours_after: int | None = None
    time: VirtualTime = field(default_factory=VirtualTime)
    pauses: list[float] = field(default_factory=list)
    made: int = 1
    counted: int = 0
    in_loop: bool = False

    def again(self) -> Attempt:
        self.made += 1
        granted = self.ours_after is not None and self.made > self.ours_after
        return attempt(OURS if granted else self.votes)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time.sleep(seconds)

    async def again_in_loop(self) -> Attempt:
        return self.again()

    async def sleep_in_loop(self, seconds: float) -> None:
        self.sleep(seconds)

    def run(self, wait: float, policy: RetryPolicy = DEFAULT_WAIT) -> Attempt:
        first = attempt(self.votes)
        budget = RetryBudget(wait=wait, policy=policy, now=self.time.now)
        if not self.in_loop:
            last, self.counted = retry_until_granted(first, self.again, budget, self.sleep)
        else:
            last, self.counted = asyncio.run(
                retry_until_granted_async(first, self.again_in_loop, budget, self.sleep_in_loop)
            )
        return last


@pytest.fixture(params=[False, True], ids=["thread", "event loop"])
def trial_of(request: pytest.FixtureRequest) -> Callable[..., Trial]:
    """Make trials that wait in a thread, and in an event loop."""
    return partial(Trial, in_loop=request.param)


@pytest.mark.parametrize("votes", [HELD, DOWN], ids=["contended", "unavailable"])
def test_without_patience_a_decided_attempt_is_the_only_one(
    trial_of: Callable[..., Trial], votes: list[Vote]
) -> None:
    trial = trial_of(votes)
    assert not trial.run(0.0).is_granted
    assert trial.made == 1


@pytest.mark.parametrize("votes", [SPLIT, LEFT_OUT], ids=["split", "nodes left out"])
def test_an_undecided_attempt_is_repeated_for_a_small_budget_even_without_patience(
    trial_of: Callable[..., Trial],
    votes: list[Vote],
) -> None:
    trial = trial_of(votes)
    assert not trial.run(0.0).is_granted
    assert trial.made > 2
    assert trial.counted == trial.made
    assert sum(trial.pauses) == pytest.approx(SPLIT_BUDGET)


def test_a_split_that_turns_into_a_conflict_ends_there() -> None:
    trial = Trial(SPLIT)
    outcomes = iter([attempt(SPLIT), attempt(HELD), attempt(OURS)])
    last, _ = retry_until_granted(
        attempt(SPLIT),
        lambda: next(outcomes),
        RetryBudget(wait=0.0, policy=DEFAULT_WAIT, now=trial.time.now),
        trial.sleep,
    )
    assert last.round.holder() == KeyHolder(0, "other", 5.0)


def test_patience_is_used_up_and_the_last_attempt_is_made_at_its_end(
    trial_of: Callable[..., Trial],
) -> None:
    trial = trial_of(HELD)
    assert not trial.run(3.0).is_granted
    assert sum(trial.pauses) == pytest.approx(3.0)


def test_success_ends_the_waiting(trial_of: Callable[..., Trial]) -> None:
    trial = trial_of(HELD, ours_after=3)
    assert trial.run(60.0).is_granted
    assert trial.made == 4


def test_pauses_are_jittered_and_grow_from_10_ms_to_250_ms(trial_of: Callable[..., Trial]) -> None:
    trials = [trial_of(HELD) for _ in range(30)]
    for trial in trials:
        trial.run(5.0)
    first = [trial.pauses[0] for trial in trials]
    later = [pause for trial in trials for pause in trial.pauses[8:-1]]
    assert max(first) <= 0.01
    assert 0.2 < max(later) <= 0.25
    assert len(set(first)) > 20


def test_a_wait_of_ones_own_decides_the_pauses(trial_of: Callable[..., Trial]) -> None:
    trial = trial_of(HELD)
    trial.run(1.0, wait_fixed(0.4))
    assert trial.pauses == pytest.approx([0.4, 0.4, 0.2])


def test_a_whole_retrying_can_stop_earlier(trial_of: Callable[..., Trial]) -> None:
    trial = trial_of(HELD)
    trial.run(60.0, Retrying(wait=wait_fixed(0.1), stop=stop_after_attempt(3)))
    assert trial.made == 3


def test_a_whole_retrying_cannot_outstay_the_patience(trial_of: Callable[..., Trial]) -> None:
    trial = trial_of(HELD)
    trial.run(1.0, Retrying(wait=wait_fixed(0.1)))
    assert sum(trial.pauses) == pytest.approx(1.0)


def test_an_error_in_an_attempt_ends_the_waiting() -> None:
    def broken() -> Attempt:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retry_until_granted(
            attempt(HELD),
            broken,
            RetryBudget(wait=5.0, policy=DEFAULT_WAIT, now=VirtualTime().now),
            lambda _: None,
        )


def test_something_else_is_no_retry_policy() -> None:
    with pytest.raises(ConfigurationError, match=r"tenacity\.Retrying, not int"):
        checked_policy(3)  # type: ignore[arg-type]


def test_a_policy_for_an_event_loop_is_no_retry_policy() -> None:
    with pytest.raises(ConfigurationError, match=r"tenacity\.Retrying, not AsyncRetrying"):
        checked_policy(AsyncRetrying())


OPTIONS: list[tuple[str, object]] = [
    ("ttl", 0.1),
    ("ttl", 61),
    ("ttl", "10"),
    ("ttl", float("nan")),
    ("wait", -1),
    ("wait", "long"),
    ("wait", True),
    ("at_least_for", -1.0),
    ("at_least_for", "a while"),
    ("retry", 5),
]


@pytest.mark.parametrize(("option", "value"), OPTIONS)
def test_an_option_that_cannot_work_is_refused_with_its_name(
    option: str, value: object, redlock_memory_nodes: list[str]
) -> None:
    with Redlock(redlock_memory_nodes) as client:
        client.acquire("busy")
        with pytest.raises(ConfigurationError, match=option):
            client.acquire("busy", **{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["ttl", "wait", "at_least_for"])
def test_durations_may_be_timedeltas(option: str, redlock_memory_nodes: list[str]) -> None:
    with Redlock(redlock_memory_nodes) as client:
        durations: dict[str, timedelta] = {option: timedelta(seconds=1)}
        lease = client.acquire("key", **durations)  # type: ignore[arg-type]
        assert lease.release()


Make = Callable[..., Redlock]


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
