"""
Faults in limits and rates: more than so many hold a key, or get it in its period.
"""

from __future__ import annotations

from tests.mutants.writing import (
    ACQUIRE_LUA,
    ATTEMPT,
    FAILURES,
    LEASE,
    NODE,
    RAISE_LUA,
    RELEASE_LUA,
    ROUNDS,
    WAIT_QUEUE_LUA,
    WAITING_MESSAGES,
    attempted,
    judged,
    modelled,
    mutant,
    tested,
    voted,
)

LIMITING = (
    mutant(
        "grants of any slots make a quorum",
        modelled("limit-two"),
        (
            ROUNDS,
            "            if count < self.needed:\n                self._exact = 0\n",
            "            self._exact = self._granted\n",
        ),
    ),
    mutant(
        "a slot needs no equal counters",
        modelled("limit-order"),
        (
            ROUNDS,
            "                self._exact = 0\n        return super()",
            "                self._exact = 0\n"
            "            else:\n"
            "                self._exact = self._granted\n"
            "        return super()",
        ),
    ),
    mutant(
        "a move accepts a counter at the token where the slot was not ours",
        modelled("limit-three"),
        (
            NODE,
            "if counter > int(token) or (counter == int(token) and holder is None):",
            "if counter > int(token):",
        ),
    ),
    mutant(
        "a move accepts any counter",
        modelled("limit-two"),
        (
            NODE,
            "if counter > int(token) or (counter == int(token) and holder is None):",
            "if False:",
        ),
    ),
    mutant(
        "a move ignores the quarantine",
        modelled("limit-restart"),
        (NODE, "self._quarantined(int(quarantine_ms), now_us) if moved else None", "None"),
    ),
    mutant(
        "a move takes the slot that another has",
        modelled("limit-two"),
        (
            NODE,
            "if holder != owner and (holder is not None or not limit.slots):",
            "if holder != owner and not limit.slots:",
        ),
        (
            NODE,
            "            if holder is None:\n                moved",
            "            if holder != owner:\n                moved",
        ),
    ),
    mutant(
        "a move counts where the slot is not set",
        modelled("limit-restart"),
        (NODE, "        for slot, life in moved.items():\n", "        for slot, life in ():\n"),
    ),
    mutant(
        "a release gives the slot of a rate back",
        modelled("rate-release"),
        (NODE, "if not is_ours or stays_here:", "if not is_ours:"),
        (LEASE, "ReleaseAction(max(0, period_of(slot) - passed))", "ReleaseAction()"),
    ),
    mutant(
        "the slot of a rate lasts as long as the lease",
        modelled("rate-release"),
        (NODE, "life = limit.period_ms or call.ttl_ms", "life = call.ttl_ms // 2"),
    ),
    mutant(
        "a key is taken where one of its slots is",
        voted("test_slots.py", "test_one_slot_that_another_has_on_a_quorum_is_no_conflict"),
        (ROUNDS, "or all(most.get(place, 0) + out", "or any(most.get(place, 0) + out"),
    ),
    mutant(
        "the script moves to a slot that another has",
        tested(
            "test_limits.py",
            "test_the_script_moves_to_no_slot_that_another_has",
        ),
        (
            RAISE_LUA,
            "if holder ~= owner and (limit == 0 or holder) then",
            "if holder ~= owner and limit == 0 then",
        ),
    ),
    mutant(
        "the script moves to a slot whose counter is at the token",
        tested(
            "test_limits.py",
            "test_the_script_moves_to_no_slot_whose_counter_is_at_the_token",
        ),
        (
            RAISE_LUA,
            "if fence > token or (fence == token and not holder) then",
            "if fence > token then",
        ),
    ),
    mutant(
        "the script moves in quarantine",
        tested("test_limits.py", "test_the_script_moves_to_no_slot_in_quarantine"),
        (RAISE_LUA, "  if quarantine then return", "  if false then return"),
    ),
    mutant(
        "the script moves for half the time",
        tested("test_limits.py", "test_a_slot_that_is_moved_to_lasts_as_long_as_the_lease"),
        (RAISE_LUA, "period > 0 and period or ARGV[4]}", "period > 0 and period or ARGV[4] / 2}"),
    ),
    mutant(
        "the script keeps the slot that it moves from",
        tested("test_limits.py", "test_the_script_moves_to_a_free_slot"),
        (RAISE_LUA, "for i = 1, #given_back do", "for i = 1, 0 do"),
    ),
    mutant(
        "the script leaves what a minority granted",
        tested("test_limits.py", "test_a_release_deletes_what_a_minority_granted_in_other_slots"),
        (RELEASE_LUA, "if limit > 0 and not is_ours then", "if false then"),
    ),
    mutant(
        "the script gives the slot of a rate back",
        tested("test_rates.py", "test_a_holder_does_not_give_its_slot_back"),
        (RELEASE_LUA, "if lock and stays and limit > 0 then", "if false then"),
        (LEASE, "ReleaseAction(max(0, period_of(slot) - passed))", "ReleaseAction()"),
    ),
    mutant(
        "the script forgets those that several released slots have woken",
        tested("test_slot_wake_ups.py", "test_one_that_is_on_its_way_is_remembered"),
        (WAIT_QUEUE_LUA, "if at and now - at > COMES_WITHIN then", "if at then"),
    ),
    mutant(
        "the script takes what is no string for a free slot",
        tested("test_limits.py", "test_a_slot_that_is_no_string_is_not_granted"),
        (
            ACQUIRE_LUA,
            "if not slot and redis.call('PTTL', key .. i % limit) == -2 then",
            "if not slot then",
        ),
    ),
    mutant(
        "a failed replacement gives the last slot back",
        tested(
            "test_slot_reservations.py",
            "test_a_replacement_that_fails_gives_the_slot_back",
        ),
        (ATTEMPT, "        places += slots or [key]\n", "        places += slots[-1:] or [key]\n"),
    ),
    mutant(
        "the release of a slot counts nobody who is on the way",
        tested(
            "test_slot_wake_ups.py", "test_while_others_are_on_their_way_only_the_rest_are_woken"
        ),
        (
            WAIT_QUEUE_LUA,
            "wake_one(key, waiters[i], now) end\n      wanted = wanted - 1",
            "wake_one(key, waiters[i], now) wanted = wanted - 1 end",
        ),
    ),
    mutant(
        "the release of a slot counts no other free one",
        tested("test_slot_wake_ups.py", "test_slots_that_were_free_before_count_as_well"),
        (
            WAIT_QUEUE_LUA,
            "if not holders[n] then wanted = wanted + 1 end",
            "if n == 1 then wanted = 2 end",
        ),
    ),
    mutant(
        "a release leaves nodes without the slot of a rate",
        tested(
            "test_rates.py",
            "test_a_release_sets_the_slot_where_it_is_missing_for_the_rest_of_the_period",
        ),
        (RELEASE_LUA, "if left > 0 and redis.call('PTTL', KEYS[i]) == -2 then", "if false then"),
    ),
    mutant(
        "a failed attempt is not undone where no answer came",
        modelled("split-two"),
        (ROUNDS, "if type(vote) is not kind]", "if vote and type(vote) is not kind]"),
    ),
    mutant(
        "a node that refused one that is granted wakes it",
        attempted(
            "test_attempt.py", "test_a_node_that_refused_one_that_is_granted_does_not_wake_it"
        ),
        (ATTEMPT, "others = round_.nodes_without(Granted)", "others: list[int] = []"),
    ),
    mutant(
        "a worker starts one message however many slots are free",
        judged(
            "test_waiting_messages.py",
            "test_of_a_limited_key_as_many_messages_start_as_slots_are_free",
        ),
        (
            WAITING_MESSAGES,
            "free = min(sum(next(held) is None for _ in slots) for slots in of_keys)",
            "free = min([next(held) is None for _ in slots][0] for slots in of_keys)",
        ),
    ),
    mutant(
        "a worker starts all messages of a key with a free slot",
        judged(
            "test_waiting_messages.py",
            "test_of_a_limited_key_as_many_messages_start_as_slots_are_free",
        ),
        (
            WAITING_MESSAGES,
            "yield keys, len(self._held) if keys == (QUORUM,) else free",
            "yield keys, len(self._held)",
        ),
    ),
    mutant(
        "a limit whose slots rivals share counts as a conflict",
        attempted("test_slot_refusals.py", "test_a_limit_whose_slots_rivals_share_is_no_conflict"),
        (FAILURES, "split = round_.phase is Phase.SPLIT", "split = not attempt.is_refused"),
    ),
    mutant(
        "who waits for a slot is not told that it is refused",
        attempted(
            "test_slot_refusals.py", "test_the_keys_that_rivals_share_are_named_for_who_waits"
        ),
        (FAILURES, "(round_.full() or round_.refused())", "round_.full()"),
    ),
    mutant(
        "a rate is said to have a holder",
        attempted("test_slot_refusals.py", "test_a_rate_names_its_turn_and_no_holder"),
        (FAILURES, "is_rate(params.node_keys[found.key])", "False"),
    ),
)
