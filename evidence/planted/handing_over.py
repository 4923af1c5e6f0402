"""
Faults in how the lock of a message changes hands.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled, tested

HAND_OVER = (
    fault(
        "the oldest rival gives up the nodes that it has",
        tested("test_the_oldest_keeps_what_it_has_until_it_has_a_quorum"),
        ("core/attempt.py::_UnderWay.make", "if self._is_oldest():", "if False:"),
    ),
    fault(
        "a younger rival keeps the nodes that it has",
        tested("test_a_younger_one_gives_up_what_it_has_and_learns_who_got_the_key"),
        ("core/attempt.py::_UnderWay.make", "if self._is_oldest():", "if True:"),
    ),
    fault(
        "a node that refuses one that it has granted keeps its other keys",
        tested("test_a_node_that_refuses_one_that_it_has_granted_is_undone_as_well"),
        ("core/attempt.py::_UnderWay._undo", "None if self.is_kept else self.round", "self.round"),
    ),
    fault(
        "the reservation of a node that is asked twice and replies late is undone",
        tested("test_a_node_that_has_been_asked_twice_and_replies_late_keeps_the_key"),
        ("core/attempt.py::_UnderWay._ask", "params.node_timeout if self.is_kept else 0.0", "0.0"),
    ),
    fault(
        "holders of slots count as rivals",
        tested("test_without_time_and_for_keys_with_a_limit_nothing_is_settled"),
        ("core/client.py::Client.reserve", "began if previous or has_limit(asked) else", ""),
    ),
    fault(
        "an owner of less than a quorum ends a settlement",
        tested("test_nodes_that_a_killed_publisher_has_or_that_are_down_keep_nobody_from_the_key"),
        (
            "protocol/rounds.py::InspectRound.is_settled",
            "max(owners.values()) >= self.needed",
            "True",
        ),
    ),
    fault(
        "rivals take free nodes while the oldest asks for them",
        tested("test_one_gets_the_key_and_all_others_know_who"),
        (
            "core/attempt.py::_UnderWay.make",
            "asked += self._watch_others()",
            "",
        ),
    ),
    fault(
        "a takeover is not guarded",
        modelled("hand-restart"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "if quarantined is not None:\n            return quarantined\n        held",
            "if quarantined is not None and not call.previous:\n    return quarantined\nheld",
        ),
    ),
    fault(
        "a takeover ignores whose lock it is",
        modelled("hand-twins"),
        (
            "protocol/node_model.py::ModelNode._choose",
            "owner == call.previous or (owner == call.owner and not free)",
            "call.previous or (owner == call.owner and not free)",
        ),
    ),
    fault(
        "a takeover takes the lock although the message's mark is refused",
        modelled("hand-mark"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "if held:\n            return Refused(",
            "for _, slot, _ in placed:\n"
            "    if call.previous and self.owner(slot, now_us) == call.previous:\n"
            "        until = now_us // 1000 + call.ttl_ms\n"
            "        self.keys[slot] = StoredKey(call.owner, until)\n"
            "if held:\n"
            "    return Refused(",
        ),
    ),
    fault(
        "a takeover does not count",
        modelled("hand-back"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "self.fences.get(fence, 0) + 1, least)",
            "self.fences.get(fence, 0) + (0 if call.previous else 1), least)",
        ),
    ),
    fault(
        "a takeover needs no second round",
        modelled("hand-vanish"),
        (
            "core/attempt.py::_UnderWay._new_round",
            "ReserveRound if params.as_reservation else AcquireRound",
            "ReserveRound if params.as_reservation or params.previous else AcquireRound",
        ),
    ),
    fault(
        "what is taken over keeps its long life",
        modelled("hand-twins"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "self.keys[slot] = StoredKey(call.owner, now_us // 1000 + life)",
            "old, until = self.keys.get(slot), now_us // 1000 + life\n"
            "until = until if old is None else old.expires_at\n"
            "self.keys[slot] = StoredKey(call.owner, until)",
        ),
    ),
    fault(
        "a failed takeover deletes the reservation",
        modelled("hand-kept"),
        (
            "core/attempt.py::_UnderWay._undo",
            "if previous is None or remaining_ms <= 0:",
            "if True:",
        ),
    ),
    fault(
        "a failed takeover gives back where nobody has answered",
        modelled("hand-kept"),
        (
            "core/attempt.py::_UnderWay._undo",
            "previous), owner, 0, actions=actions), nodes)\n"
            "        others = "
            "[node for node in range(len(self.transport.names)) if node not in nodes]\n"
            "        channel.send(undoing, others)",
            "previous), owner, 0, actions=actions))",
        ),
    ),
    fault(
        "a failed takeover gives back only what was counted",
        modelled("hand-kept"),
        (
            "core/attempt.py::_UnderWay._undo",
            "nodes = sorted(self.acked or ())",
            "nodes = sorted(self.acked or ())[:1]",
        ),
    ),
    fault(
        "a mark is deleted with the lock",
        modelled("hand-twins"),
        (
            "protocol/node_model.py::ModelNode._release",
            "(int(keep_ms), str(value), int(slots))\n            for keep_ms, value",
            "(int(keep), str(value), int(slots))\nfor _, value",
        ),
    ),
    fault(
        "a hand back takes the lock from whoever has it",
        modelled("hand-back"),
        (
            "protocol/node_model.py::ModelNode._release",
            "is_ours = self.owner(key, now_us) == owner",
            "is_ours = self.owner(key, now_us) in (owner, more[1:] and self.owner(key, now_us))",
        ),
    ),
    fault(
        "a hand back is set for long at once",
        modelled("hand-back"),
        (
            "core/holding.py::Holding.release_command",
            "ReleaseAction(min(left, milliseconds(grace)), reservation.owner)",
            "ReleaseAction(left, reservation.owner)",
        ),
    ),
    fault(
        "a reservation is lengthened on nodes that have not answered",
        modelled("hand-late"),
        (
            "core/client.py::PendingReservation.confirm",
            "transport.send_after_ack(self._channel, command, self._acked)",
            "transport.send_after_ack(self._channel, command, "
            "AckedNodes(range(len(transport.names))))",
        ),
    ),
    fault(
        "a late grant is lengthened whatever has been at its node",
        modelled("hand-late"),
        (
            "core/client.py::PendingReservation.__init__",
            "acked.max_counter = owner_timestamp_us(reservation.owner)",
            "acked.max_counter = None",
        ),
    ),
    fault(
        "a late grant counts if one newer thing has been at its node",
        modelled("hand-late"),
        (
            "core/attempt.py::_UnderWay._new_owner",
            "candidate = max(candidate, candidate_above(params.previous.owner, candidate))",
            "pass",
        ),
    ),
    fault(
        "a hand back is lengthened without asking whether it stands",
        modelled("hand-back-late"),
        ("core/release.py::release_to", "if check.phase is Phase.GRANTED:", "if True:"),
    ),
    fault(
        "what a minority kept of a used reservation stays",
        modelled("hand-left"),
        ("core/holding.py::Holding.after_release", "if kept_by:", "if False:"),
    ),
    fault(
        "the script takes over whatever is there",
        tested("test_a_key_that_somebody_else_has_is_not_taken_over"),
        (
            "protocol/lua/acquire.lua",
            "if holder == owner or (holder == ARGV[6] and holder ~= '') then",
            "if ARGV[6] then",
        ),
    ),
    fault(
        "a replacement takes the lock, and withdraws the older message later",
        tested("test_a_replacement_takes_a_reserved_key_in_the_same_step_and_does_not_extend_it"),
        ("core/client.py::Client.reserve", "(*asked, *beside)", "asked"),
    ),
    fault(
        "what is taken beside a reservation counts as a part of it",
        tested("test_a_replacement_takes_a_reserved_key_in_the_same_step_and_does_not_extend_it"),
        (
            "core/client.py::Client.reserve",
            "Reservation(node_keys=own",
            "Reservation(node_keys=places_of(params.keys)",
        ),
    ),
    fault(
        "the script takes over without the guard",
        tested("test_restarted_nodes_do_not_let_a_reservation_be_taken_over"),
        (
            "protocol/lua/acquire.lua",
            "if quarantine then return {ARGV[1], 'Q', quarantine} end local in_order",
            "if quarantine and not ARGV[6] then return {ARGV[1], 'Q', quarantine} end\n"
            "local in_order",
        ),
    ),
    fault(
        "the script takes over before it has looked at all keys",
        tested("test_a_key_that_refuses_leaves_the_reservation_as_it_was"),
        (
            "protocol/lua/acquire.lua",
            "adopted[#adopted + 1] = {key, ttl, key}",
            "redis.call('SET', key, owner, 'PX', ttl)",
        ),
    ),
    fault(
        "the script gives a key its fate whoever has it",
        tested("test_what_somebody_else_has_is_not_marked"),
        (
            "protocol/lua/release.lua",
            "is_ours = found == ARGV[2]",
            "is_ours = ARGV[5] or found == ARGV[2]",
        ),
    ),
    fault(
        "a node that joins between the rounds counts as taken over",
        tested("test_only_a_node_that_had_the_keys_has_given_the_reservation_up"),
        ("core/attempt.py::Attempt.nodes_not_taken_over", "(acked - acked.not_held)", "acked"),
    ),
    fault(
        "a slot is kept for a retry that has begun in another",
        tested("test_a_retry_that_begins_in_another_slot_leaves_none_to_nobody"),
        (
            "tasks/run/running_lock.py::RunningLock._cancel_if_unused",
            "marked.role is not Role.QUEUED",
            "marked.role in (Role.FAILED, Role.REVOKED)",
        ),
    ),
    fault(
        "the script marks nothing",
        tested("test_each_key_ends_as_it_was_told"),
        ("protocol/lua/release.lua", "if value ~= '' then", "if false then"),
    ),
    fault(
        "a full node keeps no window",
        tested("test_a_window_and_a_marker_are_kept"),
        ("protocol/lua/release.lua", "  redis.call('PEXPIRE', key, ms)\n", ""),
    ),
    fault(
        "the last step that replaces a task does not release its keys",
        tested("test_a_chain_has_the_key_until_its_last_step_has_ended"),
        (
            "tasks/run/handover.py::cancel_kept",
            "owner is not None and not owner.runs(task.name)",
            "False",
        ),
    ),
    fault(
        "a step that fails leaves the keys to a last step that never comes",
        tested("test_a_step_that_fails_frees_the_key"),
        (
            "tasks/run/handover.py::cancel_kept",
            "if raised in (Raised.EXCEPTION, Raised.REJECT, Raised.REJECT_TO_QUEUE):",
            "if False:",
        ),
    ),
    fault(
        "a step that goes to the dead letters leaves the keys to a last step that never comes",
        tested("test_a_step_whose_message_is_acknowledged_when_it_is_rejected_frees_the_key"),
        (
            "tasks/run/handover.py::cancel_kept",
            "(Raised.EXCEPTION, Raised.REJECT, Raised.REJECT_TO_QUEUE)",
            "(Raised.EXCEPTION, Raised.REJECT_TO_QUEUE)",
        ),
    ),
    fault(
        "a step that rejects an acknowledged message to its queue leaves the keys",
        tested("test_a_step_whose_message_is_acknowledged_when_it_is_rejected_frees_the_key"),
        (
            "tasks/run/handover.py::cancel_kept",
            "(Raised.EXCEPTION, Raised.REJECT, Raised.REJECT_TO_QUEUE)",
            "(Raised.EXCEPTION, Raised.REJECT)",
        ),
    ),
    fault(
        "a step that is revoked leaves the keys to a last step that never comes",
        tested("test_a_step_that_is_revoked_or_expires_frees_the_key"),
        (
            "tasks/publish/cleanup.py::_cancel_all",
            "cancel_for_steps(app, request)",
            "pass",
        ),
    ),
    fault(
        "a last step that replaces itself frees the keys before its replacement has run",
        tested("test_a_step_that_replaces_itself_has_the_key_for_its_replacement"),
        (
            "tasks/run/handover.py::cancel_kept",
            "if raised is Raised.IGNORE or keeps_reservation(unused):",
            "if False:",
        ),
    ),
    fault(
        "duplicates look for another marker than that of the last step",
        tested(
            "test_a_duplicate_that_had_to_be_sent_does_not_run_after_a_last_step_of_the_same_task"
        ),
        (
            "tasks/run/handover.py::keep_for_steps",
            "nesting=(request.replaced_task_nesting or 0) + 1",
            "nesting=0",
        ),
    ),
    fault(
        "a task whose steps have run counts as revoked",
        tested("test_a_duplicate_that_had_to_be_sent_runs_only_if_the_steps_were_rejected"),
        (
            "tasks/run/handover.py::cancel_kept",
            "Role.FINISHED if has_run else Role.REVOKED",
            "Role.REVOKED",
        ),
    ),
    fault(
        "a task whose steps were rejected counts as done",
        tested("test_a_duplicate_that_had_to_be_sent_runs_only_if_the_steps_were_rejected"),
        (
            "tasks/run/handover.py::cancel_kept",
            "Role.FINISHED if has_run else Role.REVOKED",
            "Role.FINISHED",
        ),
    ),
    fault(
        "steps keep the keys although a function may replace their last one",
        tested("test_a_key_with_a_window_or_that_a_newer_call_may_get_is_free_while_the_steps_run"),
        (
            "tasks/run/handover.py::keep_for_steps",
            'on_duplicate not in ("existing", "raise")',
            'on_duplicate == "replace"',
        ),
    ),
    fault(
        "a last step brings keys that its own lock makes it give up",
        tested("test_a_last_step_with_a_lock_or_a_marker_of_its_own_finds_the_key_free"),
        (
            "tasks/run/handover.py::_may_bring_keys",
            'getattr(task.app.tasks.get(last.task), "redlock_plan", None) is None',
            "not _may_need(running_lock, last)",
        ),
    ),
    fault(
        "keys are kept from a step that needs them",
        tested("test_steps_that_lock_the_key_themselves_find_it_free"),
        (
            "tasks/run/handover.py::keep_for_steps",
            "any(_may_need(running_lock, step) for step in steps if step is not last)",
            "False",
        ),
    ),
)
