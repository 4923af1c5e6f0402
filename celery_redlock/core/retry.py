"""
Retry policies: how long a call pauses after each attempt, and when it stops.
"""

from __future__ import annotations

from collections.abc import Callable

from tenacity import (
    AsyncRetrying,
    BaseRetrying,
    RetryAction,
    RetryCallState,
    Retrying,
    wait_random_exponential,
)
from tenacity.wait import wait_base

from celery_redlock.errors import ConfigurationError

RetryPolicy = BaseRetrying | wait_base

#: Full jitter, 10 ms doubling to 250 ms: contenders that met once must not meet again.
DEFAULT_POLICY = wait_random_exponential(multiplier=0.01, max=0.25)

#: For publishers: many may try at once, and none waits for a holder. If 100 of them retried eight
#: times a second each, they would keep colliding while the nodes are busy.
PUBLISH_POLICY = wait_random_exponential(multiplier=0.01, max=1.0)


def checked_policy(retry: RetryPolicy | None) -> RetryPolicy:
    """Return the retry policy, or raise `ConfigurationError`."""
    if retry is None:
        return DEFAULT_POLICY
    if isinstance(retry, BaseRetrying | wait_base) and not isinstance(retry, AsyncRetrying):
        return retry
    raise ConfigurationError(
        f"retry is a tenacity wait such as wait_random_exponential(0.01, max=0.25), or a whole "
        f"tenacity.Retrying, not {type(retry).__name__}."
    )


class Pauses:
    """
    The pauses of one call.

    The policy is a tenacity wait, or a whole `Retrying`, whose wait, stop and hooks count. The
    call's own loop makes the attempts and sleeps.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy if isinstance(policy, BaseRetrying) else Retrying(wait=policy)
        self._state = RetryCallState(self._policy, None, (), {})

    def after(self, attempt: object, left: Callable[[], float]) -> float | None:
        """
        Return for how many seconds to pause after an attempt; None: make no other.

        Args:
            attempt: the attempt, which the policy gets as its outcome.
            left: returns the seconds that the call has left. The last pause takes no more than
                these, so that the last attempt comes at their end.
        """
        policy, state = self._policy, self._state
        if not getattr(policy, "enabled", True):  # older versions of tenacity have no such switch
            return None
        state.set_result(attempt)
        if policy.after is not None:
            policy.after(state)
        state.upcoming_sleep = pause = min(policy.wait(state), max(0.0, left()))
        if left() <= 0 or policy.stop(state):
            return None
        state.idle_for += pause
        state.next_action = RetryAction(pause)
        if policy.before_sleep is not None:
            policy.before_sleep(state)
        state.prepare_for_next_attempt()
        return pause

    def before_attempt(self) -> None:
        """Call the policy's hook for an attempt that follows a pause."""
        if self._policy.before is not None:
            self._policy.before(self._state)
