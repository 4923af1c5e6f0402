"""
Faults in who waits for a key, who is woken, and who goes first.
"""

from __future__ import annotations

from tests.mutants.writing import (
    ACQUIRE_LUA,
    NODE,
    RELEASE_LUA,
    WAITING_MESSAGES,
    judged,
    modelled,
    mutant,
    tested,
)

WAITING = (
    mutant(
        "who is refused is not remembered",
        modelled("waits-one"),
        (NODE, "for key in refused:", "for key in ():"),
    ),
    mutant(
        "a release wakes nobody",
        modelled("waits-one"),
        (NODE, "self._wake(key, max(1, int(slots)) if lock_of(key) != key else 0, now_us)", "pass"),
    ),
    mutant(
        "one that waits takes a free key past one that has waited longer",
        modelled("waits-in-order-expired"),
        (NODE, "scores[other] < min(WOKEN, waiter.since_ms)", "scores[other] > waiter.since_ms"),
    ),
    mutant(
        "one that waits takes a free key past one that was woken",
        modelled("waits-in-order"),
        (NODE, "elif own < WOKEN or at < own:", "elif at < own:"),
    ),
    mutant(
        "the script remembers nobody",
        tested("test_wait_queues.py", "test_a_node_remembers_whom_it_refuses"),
        (ACQUIRE_LUA, "redis.pcall('ZADD', queue, ARGV[8], waiter)", ""),
    ),
    mutant(
        "the script remembers who has the key",
        tested("test_wait_queues.py", "test_who_is_granted_the_key_is_not_woken_for_it"),
        (ACQUIRE_LUA, "for i = 1, waiter and count or 0 do", "for i = 1, 0 do"),
    ),
    mutant(
        "an attempt that is undone wakes others",
        tested("test_wait_queues.py", "test_an_attempt_that_is_undone_wakes_nobody"),
        (RELEASE_LUA, "if token > 0 and not stays then wake", "if not stays then wake"),
    ),
    mutant(
        "one that does not come is woken for ever",
        tested("test_wait_queues.py", "test_who_does_not_return_is_woken_once_more_and_removed"),
        (RELEASE_LUA, "redis.pcall('ZREM', queue, waiters[i])", ""),
    ),
    mutant(
        "those that are gone keep the others asleep",
        tested("test_wait_queues.py", "test_as_many_more_are_woken_as_have_not_returned"),
        (RELEASE_LUA, "local wanted = 2 + #woken / 2", "local wanted = 2"),
    ),
    mutant(
        "a crowd of those that are gone goes first, one after the other",
        tested("test_wait_queues.py", "test_a_crowd_of_those_that_are_gone_is_passed_soon"),
        (ACQUIRE_LUA, "free - ahead - 1 + 2 * gone", "free - ahead - 1"),
    ),
    mutant(
        "one that lacks another key goes first",
        tested("test_wait_queues.py", "test_one_that_lacks_another_key_holds_nobody_up"),
        (ACQUIRE_LUA, "redis.pcall('ZREM', queue_of(taken[i][3]), waiter)", ""),
    ),
    mutant(
        "wait queues grow without bound",
        tested(
            "test_wait_queues.py",
            "test_of_too_many_those_are_remembered_that_have_waited_longest",
        ),
        (ACQUIRE_LUA, "redis.pcall('ZREMRANGEBYRANK', queue, 1000, -1)", ""),
    ),
    mutant(
        "a wait queue that was overwritten spoils the acquire",
        tested(
            "test_wait_queues.py",
            "test_a_wait_queue_that_was_overwritten_keeps_nobody_from_the_lock",
        ),
        (ACQUIRE_LUA, "redis.pcall('ZADD', queue, ARGV[8]", "redis.call('ZADD', queue, ARGV[8]"),
    ),
    mutant(
        "a message that Celery has started is started again",
        judged(
            "test_waiting_messages.py", "test_a_message_whose_eta_has_come_is_not_started_again"
        ),
        (
            WAITING_MESSAGES,
            "if entry is None or now > held.until - AT_ETA:",
            "if entry is None:",
        ),
    ),
    mutant(
        "a message that is started keeps its timer",
        judged("test_waiting_messages.py", "test_a_message_starts_once"),
        (WAITING_MESSAGES, "        entry.cancel()\n", ""),
    ),
    mutant(
        "a message starts while its last run ends",
        judged(
            "test_waiting_messages.py",
            "test_a_message_does_not_start_before_its_last_run_has_ended",
        ),
        (WAITING_MESSAGES, "left = held.starts_from - now", "left = 0.0"),
    ),
    mutant(
        "a wake-up that comes before its message is forgotten",
        judged(
            "test_waiting_messages.py", "test_a_wake_up_that_comes_before_its_message_is_remembered"
        ),
        (
            WAITING_MESSAGES,
            "is_early = now - self._early.pop(name, -math.inf) < EARLY",
            "is_early = False",
        ),
    ),
    mutant(
        "a worker that is closed starts a message",
        judged(
            "test_waiting_messages.py",
            "test_a_message_that_a_closed_worker_has_kept_for_a_moment_is_not_started",
        ),
        (WAITING_MESSAGES, "held = None if self._closed else self._held", "held = self._held"),
    ),
    mutant(
        "every message of a key that is free is started",
        judged("test_waiting_messages.py", "test_of_a_free_key_only_the_oldest_message_starts"),
        (WAITING_MESSAGES, "key=lambda item: item[1].since", "key=lambda item: -item[1].since"),
    ),
)
