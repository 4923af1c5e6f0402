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
    REQUEUE,
    RESERVING,
    ROUNDS,
    TURNS_LUA,
    WAIT_QUEUE_LUA,
    WAITING_MESSAGES,
    attempted,
    judged,
    modelled,
    mutant,
    queued,
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
        "a reservation takes the slot that others wait for",
        tested("test_slot_reservations.py", "test_a_free_slot_is_left_to_one_that_waits_for_it"),
        (
            RESERVING,
            "waiter=_newcomer(self._transport) if has_limit(keys) else None",
            "waiter=None",
        ),
    ),
    mutant(
        "nodes that name different waiters make no quorum",
        voted(
            "test_slots.py",
            "test_a_slot_that_others_wait_for_is_taken_whoever_goes_first_on_each_node",
        ),
        (
            ROUNDS,
            "seen[place, GOES_FIRST if owner.startswith(GOES_FIRST) else owner]",
            "seen[place, owner]",
        ),
    ),
    mutant(
        "a slot above a lowered limit stays reserved",
        judged(
            "limits/test_limits.py",
            "test_a_slot_above_a_lowered_limit_is_free_once_its_task_has_run",
        ),
        (RESERVING, "and (left := _above_limits(", "and (left := () and _above_limits("),
    ),
    mutant(
        "newcomers overtake those that wait for a rate",
        queued("test_a_backlog_is_served_in_order_while_as_many_arrive"),
        (NODE, "        if len(ahead) < free:\n", "        if ahead is not None:\n"),
    ),
    mutant(
        "one that comes late to its turn has lost its place",
        queued("test_none_gives_up_whose_turn_is_well_before"),
        (
            NODE,
            "            queue.scores[waiter.name] = waiter.since_ms\n        order",
            "            queue.scores.setdefault(waiter.name, now_ms)\n        order",
        ),
    ),
    mutant(
        "a slot is kept for one that does not come",
        queued("test_the_rate_is_used_while_more_wait"),
        (
            NODE,
            "TURN_EARLY_MS, TURN_GRACE_MS = 100, 300",
            "TURN_EARLY_MS, TURN_GRACE_MS = 100, 5000",
        ),
    ),
    mutant(
        "the script lets newcomers overtake those that wait for a rate",
        tested("test_rates.py", "test_a_newcomer_does_not_take_the_slot_of_one_whose_turn_it_is"),
        (TURNS_LUA, "if ahead == free then return first, left end", ""),
    ),
    mutant(
        "the script lets a newcomer have the first slot that it looks at",
        tested("test_rates.py", "test_a_newcomer_does_not_take_the_slot_of_one_whose_turn_it_is"),
        (ACQUIRE_LUA, "  if period > 0 then promised =", "  if false then promised ="),
    ),
    mutant(
        "the script keeps a slot from one that asked before",
        tested("test_rates.py", "test_one_that_asked_before_takes_it_however_late_it_comes"),
        (TURNS_LUA, "if asked and (not waiter or", "if asked and (true or"),
    ),
    mutant(
        "the script lets an attempt that is undone lose its place",
        tested("test_rates.py", "test_a_waiter_whose_attempt_is_undone_keeps_its_place"),
        (
            ACQUIRE_LUA,
            "  if tonumber(ARGV[9 + 3 * i] or '0') == 0 then forget",
            "  if true then forget",
        ),
    ),
    mutant(
        "nodes keep a slot for one that has started",
        attempted("test_attempt.py", "test_nodes_forget_the_turn_of_one_that_is_granted"),
        (
            ATTEMPT,
            "                    others = list(range(len(transport.names)))",
            "                    pass",
        ),
    ),
    mutant(
        "a split vote costs a whole period",
        judged("limits/test_rates.py", "test_one_whose_turn_ends_in_a_split_vote_comes_back_soon"),
        (
            REQUEUE,
            "        if error.split:\n            # It",
            "        if False:\n            # It",
        ),
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
            "yield keys, min(sum(next(held) is None for _ in slots) for slots in of_keys)",
            "yield keys, min([next(held) is None for _ in slots][0] for slots in of_keys)",
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
            "yield keys, min(sum(next(held) is None for _ in slots) for slots in of_keys)",
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
