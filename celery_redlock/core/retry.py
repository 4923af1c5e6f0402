"""
Retries of attempts: for how long, how often, and after which outcomes.
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

#: For publishers, of which many try at once and none waits for a holder: 100 that retry eight times
#: a second each would keep colliding while the nodes are busy.
PUBLISH_WAIT = wait_random_exponential(multiplier=0.01, max=1.0)

#: Seconds of retries even at `wait=0`: after a split vote, which proves no holder, and after a
#: missed quorum while nodes were backing off.
SPLIT_BUDGET = 0.25


def checked_policy(retry: RetryPolicy | None) -> RetryPolicy:
    """Return the retry policy, or raise `ConfigurationError`."""
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
    For how long and how often a client retries.

    Attributes:
        wait: seconds.
        policy: a tenacity wait, or a whole `Retrying`, whose own stop then counts as well.
        now: reads the clock.
        undecided_wait: seconds of retries at least while attempts end undecided.
        give_up_on: returns whether no retry can help after this attempt.
    """

    wait: float
    policy: RetryPolicy
    now: Callable[[], float]
    undecided_wait: float = SPLIT_BUDGET
    give_up_on: Callable[[Attempt], bool] | None = None


def retry_until_granted(
    first: Attempt,
    attempt: Callable[[], Attempt],
    budget: RetryBudget,
    sleep: Callable[[float], None],
) -> tuple[Attempt, int]:
    """
    Try again after a first attempt that was not granted.

    Args:
        first: the attempt that has been made.
        attempt: makes another one.
        budget: when to end.
        sleep: lets time pass.

    Returns:
        The last attempt, and how many there were.
    """
    made: list[Attempt] = [first]
    policy = _policy(budget)
    retrying = policy.copy(sleep=sleep, **_tenacity_options(first, budget, policy))
    last: Attempt = retrying(lambda: made.pop() if made else attempt())
    return last, retrying.statistics.get("attempt_number", 1)


async def retry_until_granted_async(
    first: Attempt,
    attempt: Callable[[], Awaitable[Attempt]],
    budget: RetryBudget,
    sleep: Callable[[float], Awaitable[None]],
) -> tuple[Attempt, int]:
    """Try again as `retry_until_granted` does, and let other coroutines run meanwhile."""
    made: list[Attempt] = [first]

    async def next_attempt() -> Attempt:
        return made.pop() if made else await attempt()

    policy = _policy(budget)
    if not getattr(policy, "enabled", True):
        return first, 1  # as tenacity does where it knows the switch; older versions do not
    retrying = AsyncRetrying(
        before=policy.before,
        after=policy.after,
        before_sleep=policy.before_sleep,
        sleep=sleep,
        **_tenacity_options(first, budget, policy),
    )
    last: Attempt = await retrying(next_attempt)
    return last, retrying.statistics.get("attempt_number", 1)


def _policy(budget: RetryBudget) -> BaseRetrying:
    policy = budget.policy
    return policy if isinstance(policy, BaseRetrying) else Retrying(wait=policy)


def _tenacity_options(first: Attempt, budget: RetryBudget, policy: BaseRetrying) -> dict[str, Any]:
    """Return the options for tenacity, except the hooks of the policy."""
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
        # The last sleep ends with the budget, so that the last attempt is made then.
        return min(policy.wait(state), max(0.0, left(state)))

    def try_again(made: Attempt) -> bool:
        return not (made.is_granted or (give_up_on is not None and give_up_on(made)))

    return {
        "stop": stop_any(_Exhausted(), policy.stop),  # type: ignore[arg-type]
        "wait": pause,
        "retry": retry_if_result(try_again),
        "retry_error_callback": last,
    }
