"""
Trying again: how long, how often, and what is tried again at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tenacity import (
    AsyncRetrying,
    BaseRetrying,
    RetryCallState,
    Retrying,
    retry_if_result,
    stop_any,
    wait_random_exponential,
)
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from celery_redlock.core.attempt import Attempt
from celery_redlock.errors import ConfigurationError

RetryPolicy = BaseRetrying | wait_base

#: Full jitter, 10 ms doubling to 250 ms: contenders that met once must not meet again.
DEFAULT_WAIT = wait_random_exponential(multiplier=0.01, max=0.25)

#: Where many ask at once and none waits for a holder, as publishers do: 100 that come back eight
#: times a second each go on meeting while the nodes are busy.
PUBLISH_WAIT = wait_random_exponential(multiplier=0.01, max=1.0)

#: A split vote proves nothing about a holder, so it is tried again for so long even at `wait=0`;
#: so is a quorum that was missed while nodes were left out that had failed lately.
SPLIT_BUDGET = 0.25


def checked_policy(retry: RetryPolicy | None) -> RetryPolicy:
    """Return the policy to wait by, or raise `ConfigurationError`."""
    if retry is None:
        return DEFAULT_WAIT
    if isinstance(retry, BaseRetrying | wait_base) and not isinstance(retry, AsyncRetrying):
        return retry
    raise ConfigurationError(
        f"retry is a tenacity wait such as wait_random_exponential(0.01, max=0.25), or a whole "
        f"tenacity.Retrying, not {type(retry).__name__}."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """
    For how long, how often and by what it is tried again.

    Attributes:
        wait: in seconds.
        policy: a tenacity wait, or a whole `Retrying` whose own stop then counts as well.
        now: reads the clock.
        undecided_wait: least patience while attempts end undecided.
        give_up_on: tells that an attempt shows that no waiting will help.
    """

    wait: float
    policy: RetryPolicy
    now: Callable[[], float]
    undecided_wait: float = SPLIT_BUDGET
    give_up_on: Callable[[Attempt], bool] | None = None


def try_until_granted(
    first: Attempt,
    attempt: Callable[[], Attempt],
    budget: RetryBudget,
    sleep: Callable[[float], None],
) -> Attempt:
    """
    Try again after a first attempt that was not granted; return the last attempt.

    Args:
        first: the attempt that has been made.
        attempt: makes another one.
        budget: when to end.
        sleep: lets time pass.
    """
    made: list[Attempt] = [first]
    policy = _policy(budget)
    retrying = policy.copy(sleep=sleep, **_tenacity_options(first, budget, policy))
    return retrying(lambda: made.pop() if made else attempt())


async def try_until_granted_async(
    first: Attempt,
    attempt: Callable[[], Awaitable[Attempt]],
    budget: RetryBudget,
    sleep: Callable[[float], Awaitable[None]],
) -> Attempt:
    """Try again as `try_until_granted` does, and let others run meanwhile."""
    made: list[Attempt] = [first]

    async def next_attempt() -> Attempt:
        return made.pop() if made else await attempt()

    policy = _policy(budget)
    if not getattr(policy, "enabled", True):
        return first  # as tenacity does where it knows the switch; older versions do not
    retrying = AsyncRetrying(
        before=policy.before,
        after=policy.after,
        before_sleep=policy.before_sleep,
        sleep=sleep,
        **_tenacity_options(first, budget, policy),
    )
    return await retrying(next_attempt)


def _policy(budget: RetryBudget) -> BaseRetrying:
    policy = budget.policy
    return policy if isinstance(policy, BaseRetrying) else Retrying(wait=policy)


def _tenacity_options(first: Attempt, budget: RetryBudget, policy: BaseRetrying) -> dict[str, Any]:
    """Return what tenacity is to go by, beside the hooks of the policy."""
    begun, give_up_on = budget.now(), budget.give_up_on

    def last(state: RetryCallState) -> Attempt:
        return state.outcome.result() if state.outcome is not None else first

    def left(state: RetryCallState) -> float:
        undecided_wait = budget.undecided_wait if last(state).is_undecided else 0.0
        return begun + max(budget.wait, undecided_wait) - budget.now()

    class _Exhausted(stop_base):
        def __call__(self, retry_state: RetryCallState) -> bool:
            return left(retry_state) <= 0

    def pause(state: RetryCallState) -> float:
        # The last sleep ends with the patience, so that the last attempt is made then.
        return min(policy.wait(state), max(0.0, left(state)))

    def try_again(made: Attempt) -> bool:
        return not (made.is_granted or (give_up_on is not None and give_up_on(made)))

    return {
        "stop": stop_any(_Exhausted(), policy.stop),  # type: ignore[arg-type]
        "wait": pause,
        "retry": retry_if_result(try_again),
        "retry_error_callback": last,
    }
