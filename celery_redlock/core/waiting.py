"""
Trying again: how long, how often, and what is tried again at all.
"""

from __future__ import annotations

from collections.abc import Callable

from tenacity import (
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

#: A split vote proves nothing about a holder, so it is tried again for so long even at `wait=0`;
#: so is a quorum that was missed while nodes were left out that had failed lately.
UNDECIDED_BUDGET = 0.25


def checked_policy(retry: RetryPolicy | None) -> RetryPolicy:
    """Return the policy to wait by, or raise `ConfigurationError`."""
    if retry is None:
        return DEFAULT_WAIT
    if isinstance(retry, BaseRetrying | wait_base):
        return retry
    raise ConfigurationError(
        f"retry is a tenacity wait such as wait_random_exponential(0.01, max=0.25), or a whole "
        f"tenacity.Retrying, not {type(retry).__name__}."
    )


def try_until_granted(
    first: Attempt,
    attempt: Callable[[], Attempt],
    *,
    wait: float,
    policy: RetryPolicy,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    undecided: float = UNDECIDED_BUDGET,
    final: Callable[[Attempt], bool] | None = None,
) -> Attempt:
    """
    Try again after a first attempt that was not granted; return the last attempt.

    Args:
        first: the attempt that has been made.
        attempt: makes another one.
        wait: patience in seconds.
        policy: a tenacity wait, or a whole `Retrying` whose own stop then counts as well.
        now: reads the clock.
        sleep: lets time pass.
        undecided: least patience while attempts end undecided.
        final: tells that an attempt shows that no waiting will help.
    """
    begun = now()
    made: list[Attempt] = [first]

    def left(state: RetryCallState) -> float:
        last = state.outcome.result() if state.outcome is not None else first
        budget = max(wait, undecided) if last.undecided else wait
        return begun + budget - now()

    class _Exhausted(stop_base):
        def __call__(self, retry_state: RetryCallState) -> bool:
            return left(retry_state) <= 0

    base = policy if isinstance(policy, BaseRetrying) else Retrying(wait=policy)
    stop = _Exhausted()

    def pause(state: RetryCallState) -> float:
        # The last sleep ends with the patience, so that the last attempt is made then.
        return min(base.wait(state), max(0.0, left(state)))

    retrying = base.copy(
        stop=stop_any(stop, base.stop),  # type: ignore[arg-type]
        wait=pause,
        retry=retry_if_result(
            lambda made_now: not (made_now.granted or (final is not None and final(made_now)))
        ),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else first,
        sleep=sleep,
    )
    return retrying(lambda: made.pop() if made else attempt())
