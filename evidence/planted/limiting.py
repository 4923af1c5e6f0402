"""
Faults in limits and rates: more than so many hold a key, or get it in its period.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled, tested

LIMITING = (
    fault(
        "grants of any slots make a quorum",
        modelled("limit-two"),
        (
            "protocol/rounds.py::SlotRound._first_quorum",
            "if count < self.needed:\n                self._exact = 0",
            "self._exact = self._granted",
        ),
    ),
    fault(
        "a slot needs no equal counters",
        modelled("limit-order"),
        (
            "protocol/rounds.py::SlotRound._first_quorum",
            "if count < self.needed: self._exact = 0",
            "self._exact = 0 if count < self.needed else self._granted",
        ),
    ),
    fault(
        "a move accepts a counter at the token where the slot was not ours",
        modelled("limit-three"),
        (
            "protocol/node_model.py::ModelNode._raise",
            "if counter > int(token) or (counter == int(token) and holder is None):",
            "if counter > int(token):",
        ),
    ),
    fault(
        "a move accepts any counter",
        modelled("limit-two"),
        (
            "protocol/node_model.py::ModelNode._raise",
            "if counter > int(token) or (counter == int(token) and holder is None):",
            "if False:",
        ),
    ),
    fault(
        "a move ignores the quarantine",
        modelled("limit-restart"),
        (
            "protocol/node_model.py::ModelNode._raise",
            "self._quarantined(int(quarantine_ms), now_us) if moved else None",
            "None",
        ),
    ),
    fault(
        "a move takes the slot that another has",
        modelled("limit-two"),
        (
            "protocol/node_model.py::ModelNode._raise",
            "if holder != owner and (holder is not None or not limit.slots):",
            "if holder != owner and not limit.slots:",
        ),
        (
            "protocol/node_model.py::ModelNode._raise",
            "if holder is None:\n                moved",
            "if holder != owner:\n    moved",
        ),
    ),
    fault(
        "a move counts where the slot is not set",
        modelled("limit-restart"),
        (
            "protocol/node_model.py::ModelNode._raise",
            "for slot, life in moved.items():",
            "for slot, life in ():",
        ),
    ),
    fault(
        "a release gives the slot of a rate back",
        modelled("rate-release"),
        (
            "protocol/node_model.py::ModelNode._release",
            "if not is_ours or stays_here:",
            "if not is_ours:",
        ),
        (
            "core/holding.py::Holding.release_command",
            "ReleaseAction(max(0, key.period_ms - passed))",
            "ReleaseAction()",
        ),
    ),
    fault(
        "the slot of a rate lasts as long as the lease",
        modelled("rate-release"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "life = limit.period_ms or call.ttl_ms",
            "life = call.ttl_ms // 2",
        ),
    ),
    fault(
        "a key is taken where one of its slots is",
        tested("test_one_slot_that_another_has_on_a_quorum_is_no_conflict"),
        (
            "protocol/rounds.py::SlotRound.full",
            "or all(most.get(place, 0) + out",
            "or any(most.get(place, 0) + out",
        ),
    ),
    fault(
        "the script moves to a slot that another has",
        tested("test_the_script_moves_to_no_slot_that_another_has"),
        (
            "protocol/lua/raise.lua",
            "if holder ~= owner and (limit == 0 or holder) then",
            "if holder ~= owner and limit == 0 then",
        ),
    ),
    fault(
        "the script moves to a slot whose counter is at the token",
        tested("test_the_script_moves_to_no_slot_whose_counter_is_at_the_token"),
        (
            "protocol/lua/raise.lua",
            "if fence > token or (fence == token and not holder) then",
            "if fence > token then",
        ),
    ),
    fault(
        "the script moves in quarantine",
        tested("test_the_script_moves_to_no_slot_in_quarantine"),
        (
            "protocol/lua/raise.lua",
            "if quarantine then return {ARGV[1], 'Q', quarantine} end end",
            "end",
        ),
    ),
    fault(
        "the script moves for half the time",
        tested("test_a_slot_that_is_moved_to_lasts_as_long_as_the_lease"),
        (
            "protocol/lua/raise.lua",
            "period > 0 and period or ARGV[4]}",
            "period > 0 and period or ARGV[4] / 2}",
        ),
    ),
    fault(
        "the script keeps the slot that it moves from",
        tested("test_the_script_moves_to_a_free_slot"),
        (
            "protocol/lua/raise.lua",
            "for i = 1, #given_back do redis.call('DEL'",
            "for i = 1, 0 do redis.call('DEL'",
        ),
    ),
    fault(
        "the script leaves what a minority granted",
        tested("test_a_release_deletes_what_a_minority_granted_in_other_slots"),
        ("protocol/lua/release.lua", "if limit > 0 and not is_ours then", "if false then"),
    ),
    fault(
        "the script gives the slot of a rate back",
        tested("test_a_holder_does_not_give_its_slot_back"),
        ("protocol/lua/release.lua", "if lock and stays and limit > 0 then", "if false then"),
        (
            "core/holding.py::Holding.release_command",
            "ReleaseAction(max(0, key.period_ms - passed))",
            "ReleaseAction()",
        ),
    ),
    fault(
        "the script forgets those that several released slots have woken",
        tested("test_one_that_is_on_its_way_is_remembered"),
        (
            "protocol/lua/wait_queue.lua::wake",
            "if at and now - at > COMES_WITHIN then",
            "if at then",
        ),
    ),
    fault(
        "the script takes what is no string for a free slot",
        tested("test_a_slot_that_is_no_string_is_not_granted"),
        (
            "protocol/lua/acquire.lua::choose",
            "if not slot and redis.call('PTTL', key .. i % limit) == -2 then",
            "if not slot then",
        ),
    ),
    fault(
        "a failed replacement gives the last slot back",
        tested("test_a_replacement_that_fails_gives_the_slot_back"),
        (
            "core/attempt.py::_UnderWay._given_back",
            "found += own or [key]",
            "found += own[-1:] or [key]",
        ),
    ),
    fault(
        "the release of a slot counts nobody who is on the way",
        tested("test_while_others_are_on_their_way_only_the_rest_are_woken"),
        (
            "protocol/lua/wait_queue.lua::wake",
            "wake_one(key, waiters[i], now) end\n      wanted = wanted - 1",
            "wake_one(key, waiters[i], now) wanted = wanted - 1 end",
        ),
    ),
    fault(
        "the release of a slot counts no other free one",
        tested("test_slots_that_were_free_before_count_as_well"),
        (
            "protocol/lua/wait_queue.lua::wake",
            "if not holders[n] then wanted = wanted + 1 end",
            "if n == 1 then wanted = 2 end",
        ),
    ),
    fault(
        "a release leaves nodes without the slot of a rate",
        tested("test_a_release_sets_the_slot_for_the_rest_of_the_period_where_no_quorum_has_it"),
        (
            "protocol/lua/release.lua",
            "if left > 0 and not is_ours and",
            "if false and",
        ),
    ),
    fault(
        "a release leaves the slot of a rate to an attempt that gives it back",
        tested("test_a_release_sets_the_slot_for_the_rest_of_the_period_where_no_quorum_has_it"),
        ("protocol/lua/release.lua", "taken ~= -1", "taken == -2"),
    ),
    fault(
        "a late release lets a slot of a rate end early",
        tested("test_a_release_sets_the_slot_for_the_rest_of_the_period_where_no_quorum_has_it"),
        ("protocol/lua/release.lua", "math.max(left, taken)", "left"),
    ),
    fault(
        "a late release in memory lets a slot of a rate end early",
        tested("test_a_release_sets_the_slot_for_the_rest_of_the_period_where_no_quorum_has_it"),
        (
            "protocol/node_model.py::ModelNode._release",
            "until = max(until, self.keys[key].expires_at)",
            "pass",
        ),
    ),
    fault(
        "a reservation takes the slot that others wait for",
        tested("test_a_free_slot_is_left_to_one_that_waits_for_it"),
        (
            "core/client.py::Client.reserve",
            "waiter=_newcomer(self._transport) if has_limit(asked) else None",
            "waiter=None",
        ),
    ),
    fault(
        "nodes that name different waiters make no quorum",
        tested("test_a_slot_that_others_wait_for_is_taken_whoever_goes_first_on_each_node"),
        (
            "protocol/rounds.py::SlotRound.full",
            "seen[place, GOES_FIRST if owner.startswith(GOES_FIRST) else owner]",
            "seen[place, owner]",
        ),
    ),
    fault(
        "a slot above a lowered limit stays reserved",
        tested("test_a_slot_above_a_lowered_limit_is_free_once_its_task_has_run"),
        (
            "core/client.py::Client.acquire_for_task",
            "and (left := _above_limits(",
            "and (left := () and _above_limits(",
        ),
    ),
    fault(
        "newcomers overtake those that wait for a rate",
        tested("test_the_slot_of_one_whose_turn_it_is_is_kept"),
        (
            "protocol/wait_queue.py::WaitQueue.has_its_turn",
            "if len(ahead) < free:",
            "if ahead is not None:",
        ),
    ),
    fault(
        "one that has a slot of a rate is before others until it is forgotten",
        tested("test_one_that_has_a_slot_is_before_no_other"),
        (
            "protocol/wait_queue.py::WaitQueue._has_slot",
            "return at is not None and now_us - at <= COMES_WITHIN_US",
            "return False",
        ),
    ),
    fault(
        "the script has one that has a slot of a rate before others",
        tested("test_one_that_has_a_slot_is_before_no_other"),
        (
            "protocol/lua/turns.lua::turn_of",
            "if type(at) == 'number' and at < rank then ahead = ahead - 1 end",
            "",
        ),
    ),
    fault(
        "the script keeps a slot of a rate for one that has one",
        tested("test_the_slot_of_one_whose_turn_it_is_is_kept"),
        (
            "protocol/lua/turns.lua::has_its_turn",
            "if is_before and not has_slot(key, due[i], now) then",
            "if is_before then",
        ),
    ),
    fault(
        "one that comes late to its turn has lost its place",
        tested("test_none_gives_up_whose_turn_is_well_before"),
        (
            "protocol/wait_queue.py::WaitQueue.turn_of",
            "if waiter is not None: self.scores[waiter.name] = waiter.score",
            "if waiter is not None:\n    self.scores.setdefault(waiter.name, now_ms)",
        ),
    ),
    fault(
        "a slot is kept for one that does not come",
        tested("test_the_rate_is_used_while_more_wait"),
        (
            "protocol/wait_queue.py",
            "TURN_EARLY_MS, TURN_GRACE_MS = 100, 300",
            "TURN_EARLY_MS, TURN_GRACE_MS = 100, 5000",
        ),
    ),
    fault(
        "the script lets newcomers overtake those that wait for a rate",
        tested("test_the_slot_of_one_whose_turn_it_is_is_kept"),
        (
            "protocol/lua/turns.lua::has_its_turn",
            "if ahead == free then return first, left end",
            "",
        ),
    ),
    fault(
        "the script lets a newcomer have the first slot that it looks at",
        tested("test_the_slot_of_one_whose_turn_it_is_is_kept"),
        (
            "protocol/lua/acquire.lua::choose",
            "if period > 0 then promised =",
            "if false then promised =",
        ),
    ),
    fault(
        "the script keeps a slot from one that asked before",
        tested("test_the_slot_of_one_whose_turn_it_is_is_kept"),
        (
            "protocol/lua/turns.lua::has_its_turn",
            "local is_before = asked and (not waiter or",
            "local is_before = asked and (true or",
        ),
    ),
    fault(
        "the script lets an attempt that is undone lose its place",
        tested("test_a_waiter_whose_attempt_is_undone_keeps_its_place"),
        (
            "protocol/lua/acquire.lua",
            "if tonumber(ARGV[9 + 3 * i] or '0') == 0 then forget",
            "if true then forget",
        ),
    ),
    fault(
        "nodes keep a slot for one that has started",
        tested("test_nodes_forget_the_turn_of_one_that_is_granted"),
        (
            "core/attempt.py::_UnderWay._complete",
            "others = list(range(len(self.transport.names)))",
            "pass",
        ),
    ),
    fault(
        "a split vote costs a whole period",
        tested("test_one_whose_turn_ends_in_a_split_vote_comes_back_soon"),
        (
            "tasks/run/requeue.py::_delay",
            "if error.split:\n            # It",
            "if False:\n    # It",
        ),
    ),
    fault(
        "a failed attempt is not undone where no answer came",
        modelled("split-two"),
        (
            "protocol/rounds.py::Round.nodes_without",
            "if type(vote) is not kind]",
            "if vote and type(vote) is not kind]",
        ),
    ),
    fault(
        "a node that refused one that is granted wakes it",
        tested("test_a_node_that_refused_one_that_is_granted_does_not_wake_it"),
        (
            "core/attempt.py::_UnderWay._complete",
            "others = round_.nodes_without(Granted)",
            "others: list[int] = []",
        ),
    ),
    fault(
        "a worker starts one message however many slots are free",
        tested("test_of_a_limited_key_as_many_messages_start_as_slots_are_free"),
        (
            "tasks/waiting_messages.py::WaitingMessages._free",
            "free = [sum(next(held) is None for _ in slots) for slots in of_keys]",
            "free = [[next(held) is None for _ in slots][0] for slots in of_keys]",
        ),
    ),
    fault(
        "a worker starts all messages of a key with a free slot",
        tested("test_of_a_limited_key_as_many_messages_start_as_slots_are_free"),
        (
            "tasks/waiting_messages.py::WaitingMessages._free",
            "yield keys, min(map(mul, free, most))",
            "yield keys, len(self._held)",
        ),
    ),
    fault(
        "a limit whose slots rivals share counts as a conflict",
        tested("test_a_limit_whose_slots_rivals_share_is_no_conflict"),
        (
            "core/failures.py::refusal_of",
            "split, before = attempt.phase is Phase.SPLIT",
            "split, before = not attempt.is_refused",
        ),
    ),
    fault(
        "who waits for a slot is not told that it is refused",
        tested("test_the_keys_that_rivals_share_are_named_for_who_waits"),
        (
            "core/failures.py::_obstacle",
            "full = round_.full() or round_.refused()",
            "full = round_.full()",
        ),
    ),
    fault(
        "a rate is said to have a holder",
        tested("test_a_rate_names_its_turn_and_no_holder"),
        ("core/failures.py::refusal_of", "if key.is_rate and owner", "if False and owner"),
    ),
)
