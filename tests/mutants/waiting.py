"""
Faults in who waits for a key, who is woken, and who goes first.
"""

from __future__ import annotations

from tests.mutants.writing import (
    ACQUIRE_LUA,
    ATTEMPT,
    LEASE,
    NODE,
    RELEASE_LUA,
    WAIT_QUEUE_LUA,
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
        (NODE, "self._wake(lock_of(key), max(1, int(slots)) if is_slot else 0, now_us)", "pass"),
    ),
    mutant(
        "one that waits takes a free key past one that has waited longer",
        modelled("waits-in-order-expired"),
        (NODE, "queue.scores[other] >= waiter.since_ms", "queue.scores[other] <= waiter.since_ms"),
    ),
    mutant(
        "one that waits takes a free key past one that was woken",
        tested("test_wait_queues.py", "test_the_second_in_line_lets_the_first_go_first"),
        (
            ACQUIRE_LUA,
            "elseif name ~= waiter and (at or (in_order and wake_one(key, name, now))) then",
            "elseif not at and in_order then",
        ),
    ),
    mutant(
        "a first attempt overtakes one that was just woken",
        tested(
            "test_wait_queues.py", "test_a_first_attempt_does_not_overtake_one_that_was_just_woken"
        ),
        (ACQUIRE_LUA, "return latest and now - tonumber(latest) <= START", "return nil"),
    ),
    mutant(
        "one that was woken keeps a free key from others for ever",
        tested("test_wait_queues.py", "test_one_that_was_woken_has_a_start_for_a_moment_only"),
        (ACQUIRE_LUA, "now - tonumber(latest) <= START", "true"),
        (ACQUIRE_LUA, "at and now - at > grace", "at and now < at"),
    ),
    mutant(
        "one that is refused again is not woken again",
        modelled("way-three"),
        (NODE, "queue.woken.pop(waiter.name, None)\n        for", "for"),
    ),
    mutant(
        "a wake-up that cannot be noted keeps the key from others",
        tested("test_wait_queues.py", "test_where_a_wake_up_cannot_be_noted_no_waiter_goes_first"),
        (WAIT_QUEUE_LUA, "return woken_at(key, name) ~= nil", "return true"),
    ),
    mutant(
        "a release wakes its own holder",
        tested(
            "test_wait_queues.py",
            "test_a_waiter_that_is_entered_again_while_it_acquires_is_not_woken_by_its_own_release",
        ),
        (LEASE, "actions, self._limits, self._waiter)", "actions, self._limits)"),
    ),
    mutant(
        "messages start in a circle while nodes answer and take no lock",
        judged(
            "test_waiting_messages.py",
            "test_messages_that_wait_for_a_quorum_do_not_start_while_nodes_take_no_lock",
        ),
        (WAITING_MESSAGES, "len(self._held) if voted >= polled.needed else 0", "len(self._held)"),
    ),
    mutant(
        "a worker looks at no key again while new ones come",
        judged("test_waiting_messages.py", "test_of_many_keys_it_looks_at_some_in_turn"),
        (WAITING_MESSAGES, "dict.fromkeys([*new, *earlier][:LOOKS", "dict.fromkeys(new[:LOOKS"),
    ),
    mutant(
        "the script remembers nobody",
        tested("test_wait_queues.py", "test_a_node_remembers_whom_it_refuses"),
        (WAIT_QUEUE_LUA, "redis.pcall('ZADD', queue, since, name)", ""),
    ),
    mutant(
        "one that is refused again counts as on its way",
        tested("test_wait_queues.py", "test_who_is_refused_again_is_woken_again"),
        (
            WAIT_QUEUE_LUA,
            "redis.pcall('ZADD', queue, since, name)\n  redis.pcall('ZREM', woken_of(key), name)",
            "redis.pcall('ZADD', queue, since, name)",
        ),
    ),
    mutant(
        "nodes that granted an attempt which is undone forget that it waits",
        tested(
            "test_undoing.py",
            "test_a_waiter_whose_attempt_is_undone_waits_on_the_nodes_that_granted_it",
        ),
        (ATTEMPT, "channel.send(enqueue(waiters), round_.nodes_without(Refused))", "pass"),
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
        (WAIT_QUEUE_LUA, "forget(key, waiters[i])\n", ""),
    ),
    mutant(
        "those that are gone keep the others asleep",
        tested(
            "test_wait_queues.py",
            "test_those_that_do_not_come_are_woken_once_more_and_others_beside_them",
        ),
        (
            WAIT_QUEUE_LUA,
            "publish(key, waiters[i])\n",
            "publish(key, waiters[i])\n      wanted = wanted - 1\n",
        ),
    ),
    mutant(
        "a crowd of those that are gone goes first, one after the other",
        tested("test_wait_queues.py", "test_a_crowd_of_those_that_are_gone_is_passed_soon"),
        (ACQUIRE_LUA, "more = more + 2", "more = more"),
    ),
    mutant(
        "one that lacks another key goes first",
        tested("test_wait_queues.py", "test_one_that_lacks_another_key_holds_nobody_up"),
        (ACQUIRE_LUA, "if waiter and forget(key, waiter) and taken[i][4] then", "if false then"),
    ),
    mutant(
        "one that lacks another key uses a wake-up up",
        tested(
            "test_wait_queues.py",
            "test_a_waiter_that_lacks_another_key_wakes_the_next_in_its_place",
        ),
        (
            ACQUIRE_LUA,
            "if waiter and forget(key, waiter) and taken[i][4] then wake(key, taken[i][4]) end",
            "if waiter then forget(key, waiter) end",
        ),
    ),
    mutant(
        "wait queues grow without bound",
        tested(
            "test_wait_queues.py",
            "test_of_too_many_those_are_remembered_that_have_waited_longest",
        ),
        (WAIT_QUEUE_LUA, "redis.pcall('ZREMRANGEBYRANK', queue, 1000, -1)", ""),
    ),
    mutant(
        "a wait queue that was overwritten spoils the acquire",
        tested(
            "test_wait_queues.py",
            "test_a_wait_queue_that_was_overwritten_keeps_nobody_from_the_lock",
        ),
        (WAIT_QUEUE_LUA, "redis.pcall('ZADD', queue", "redis.call('ZADD', queue"),
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
        (WAITING_MESSAGES, "else held.starts_from - now", "else 0.0"),
    ),
    mutant(
        "a message that arrives is not put back into its wait queue",
        judged(
            "test_waiting_messages.py",
            "test_a_message_that_arrives_is_put_back_into_its_wait_queue",
        ),
        (WAITING_MESSAGES, "if key != QUORUM", "if key == QUORUM"),
    ),
    mutant(
        "a worker wakes messages that have begun in the place of others",
        judged("test_waiting_messages.py", "test_a_message_that_has_begun_is_not_looked_at"),
        (WAITING_MESSAGES, "if item[1].until > until]", "]"),
    ),
    mutant(
        "nobody looks whether one that was woken has come",
        judged(
            "test_waiting_messages.py",
            "test_after_a_wake_up_a_worker_looks_whether_anybody_has_come",
        ),
        (WAITING_MESSAGES, "self._soon(self._look_later, channel)", "pass"),
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
