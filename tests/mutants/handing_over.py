"""
Faults in how the lock of a message changes hands.
"""

from __future__ import annotations

from tests.mutants.writing import (
    ACQUIRE_LUA,
    ATTEMPT,
    LEASE,
    NODE,
    RELEASE_LUA,
    RELEASING,
    RESERVING,
    RUNNING_LOCK,
    attempted,
    judged,
    modelled,
    mutant,
    tested,
)

KEPT_KEYS = "tasks/run/kept_keys.py"
CLEANUP = "tasks/publish/cleanup.py"

_GIVEN_BACK = """(given_back, owner, 0, actions=actions, limits=limits), nodes)
    channel.send(undoing, [node for node in range(len(transport.names)) if node not in nodes])
"""

HAND_OVER = (
    mutant(
        "a takeover is not guarded",
        modelled("hand-restart"),
        (
            NODE,
            "if quarantined is not None:\n            return quarantined\n        held",
            "if quarantined is not None and not call.previous:\n"
            "            return quarantined\n        held",
        ),
    ),
    mutant(
        "a takeover ignores whose lock it is",
        modelled("hand-twins"),
        (
            NODE,
            "call.previous and owners[slot] == call.previous",
            "call.previous and owners[slot]",
        ),
    ),
    mutant(
        "a takeover takes the lock although the message's mark is refused",
        modelled("hand-mark"),
        (
            NODE,
            "        if held:\n            return Refused(",
            "        for _, slot, _ in placed:\n"
            "            if call.previous and self.owner(slot, now_us) == call.previous:\n"
            "                until = now_us // 1000 + call.ttl_ms\n"
            "                self.keys[slot] = StoredKey(call.owner, until)\n"
            "        if held:\n            return Refused(",
        ),
    ),
    mutant(
        "a takeover does not count",
        modelled("hand-back"),
        (
            NODE,
            "self.fences.get(fence, 0) + 1, least)",
            "self.fences.get(fence, 0) + (0 if call.previous else 1), least)",
        ),
    ),
    mutant(
        "a takeover needs no second round",
        modelled("hand-vanish"),
        (
            ATTEMPT,
            "ReserveRound if params.as_reservation else AcquireRound",
            "ReserveRound if params.as_reservation or params.previous else AcquireRound",
        ),
    ),
    mutant(
        "what is taken over keeps its long life",
        modelled("hand-twins"),
        (
            NODE,
            "            self.keys[slot] = StoredKey(call.owner, now_us // 1000 + life)\n",
            "            old, until = self.keys.get(slot), now_us // 1000 + life\n"
            "            until = until if old is None else old.expires_at\n"
            "            self.keys[slot] = StoredKey(call.owner, until)\n",
        ),
    ),
    mutant(
        "a failed takeover deletes the reservation",
        modelled("hand-kept"),
        (ATTEMPT, "    if previous is None or remaining_ms <= 0:\n", "    if True:\n"),
    ),
    mutant(
        "a failed takeover gives back where nobody has answered",
        modelled("hand-kept"),
        (
            ATTEMPT,
            _GIVEN_BACK,
            "(given_back, owner, 0, actions=actions, limits=limits))\n",
        ),
    ),
    mutant(
        "a failed takeover gives back only what was counted",
        modelled("hand-kept"),
        (ATTEMPT, "    nodes = sorted(acked or ())\n", "    nodes = sorted(acked or ())[:1]\n"),
    ),
    mutant(
        "a mark is deleted with the lock",
        modelled("hand-twins"),
        (NODE, "int(actions[3 * index] if actions else keep)", "int(keep)"),
    ),
    mutant(
        "a hand back takes the lock from whoever has it",
        modelled("hand-back"),
        (
            NODE,
            "is_ours = self.owner(key, now_us) == owner",
            "is_ours = self.owner(key, now_us) in (owner, actions and self.owner(key, now_us))",
        ),
    ),
    mutant(
        "a hand back is set for long at once",
        modelled("hand-back"),
        (
            LEASE,
            "ReleaseAction(min(left, milliseconds(grace)), reservation.owner)",
            "ReleaseAction(left, reservation.owner)",
        ),
    ),
    mutant(
        "a reservation is lengthened on nodes that have not answered",
        modelled("hand-late"),
        (
            RESERVING,
            "transport.send_after_ack(self._channel, command, self._acked)",
            "transport.send_after_ack(self._channel, command, "
            "AckedNodes(range(len(transport.names))))",
        ),
    ),
    mutant(
        "a late grant is lengthened whatever has been at its node",
        modelled("hand-late"),
        (
            RESERVING,
            "acked.max_counter = owner_timestamp_us(reservation.owner)",
            "acked.max_counter = None",
        ),
    ),
    mutant(
        "a late grant counts if one newer thing has been at its node",
        modelled("hand-late"),
        (ATTEMPT, "candidate = max(candidate, candidate_above(previous.owner, candidate))", "pass"),
    ),
    mutant(
        "a hand back is lengthened without asking whether it stands",
        modelled("hand-back-late"),
        (RELEASING, "    if check.phase is Phase.GRANTED:\n", "    if True:\n"),
    ),
    mutant(
        "what a minority kept of a used reservation stays",
        modelled("hand-left"),
        (LEASE, "        if kept_by:\n", "        if False:\n"),
    ),
    mutant(
        "the script takes over whatever is there",
        tested("test_taking_over.py", "test_a_key_that_somebody_else_has_is_not_taken_over"),
        (ACQUIRE_LUA, "if holder == ARGV[6] and holder ~= '' then", "if ARGV[6] then"),
    ),
    mutant(
        "a replacement takes the lock, and withdraws the older message later",
        tested(
            "test_reservations.py",
            "test_a_replacement_takes_a_reserved_key_in_the_same_step_and_does_not_extend_it",
        ),
        (RESERVING, "(*keys, *beside),", "keys,"),
    ),
    mutant(
        "what is taken beside a reservation counts as a part of it",
        tested(
            "test_reservations.py",
            "test_a_replacement_takes_a_reserved_key_in_the_same_step_and_does_not_extend_it",
        ),
        (RESERVING, "_reserved_by(attempt, own,", "_reserved_by(attempt, params.node_keys,"),
    ),
    mutant(
        "the script takes over without the guard",
        tested(
            "test_taking_over.py", "test_restarted_nodes_do_not_let_a_reservation_be_taken_over"
        ),
        (ACQUIRE_LUA, "if quarantine then return", "if quarantine and not ARGV[6] then return"),
    ),
    mutant(
        "the script takes over before it has looked at all keys",
        tested("test_taking_over.py", "test_a_key_that_refuses_leaves_the_reservation_as_it_was"),
        (
            ACQUIRE_LUA,
            "adopted[#adopted + 1] = {key, ttl, key}",
            "redis.call('SET', key, owner, 'PX', ttl)",
        ),
    ),
    mutant(
        "the script gives a key its fate whoever has it",
        tested("test_release_with.py", "test_what_somebody_else_has_is_not_marked"),
        (
            RELEASE_LUA,
            "is_ours = redis.pcall('GET', KEYS[i]) == ARGV[2]",
            "is_ours = ARGV[5] or redis.pcall('GET', KEYS[i]) == ARGV[2]",
        ),
    ),
    mutant(
        "a node that joins between the rounds counts as taken over",
        attempted(
            "test_attempt.py", "test_only_a_node_that_had_the_keys_has_given_the_reservation_up"
        ),
        (ATTEMPT, "(acked - acked.not_held)", "acked"),
    ),
    mutant(
        "a slot is kept for a retry that has begun in another",
        judged(
            "limits/test_limits.py",
            "test_a_retry_that_begins_in_another_slot_leaves_none_to_nobody",
        ),
        (
            RUNNING_LOCK,
            "marked.role is not Role.QUEUED",
            "marked.role in (Role.FAILED, Role.REVOKED)",
        ),
    ),
    mutant(
        "the script marks nothing",
        tested("test_release_with.py", "test_each_key_ends_as_it_was_told"),
        (RELEASE_LUA, "    elseif value == '' then", "    elseif true then"),
    ),
    mutant(
        "the last step that replaces a task does not release its keys",
        judged("run/test_kept_keys.py", "test_a_chain_has_the_key_until_its_last_step_has_ended"),
        (KEPT_KEYS, "owner is not None and not owner.runs(task.name)", "False"),
    ),
    mutant(
        "a step that fails leaves the keys to a last step that never comes",
        judged("run/test_kept_keys.py", "test_a_step_that_fails_frees_the_key"),
        (KEPT_KEYS, "if raised in (Raised.EXCEPTION, Raised.REJECT):", "if False:"),
    ),
    mutant(
        "a step that goes to the dead letters leaves the keys to a last step that never comes",
        judged("run/test_kept_keys.py", "test_a_step_that_goes_to_the_dead_letters_frees_the_key"),
        (KEPT_KEYS, "(Raised.EXCEPTION, Raised.REJECT)", "(Raised.EXCEPTION,)"),
    ),
    mutant(
        "a step that is revoked leaves the keys to a last step that never comes",
        judged("run/test_kept_keys.py", "test_a_step_that_is_revoked_or_expires_frees_the_key"),
        (
            CLEANUP,
            "    if request is not None:\n        cancel_for_steps",
            "    if False:\n        cancel_for_steps",
        ),
    ),
    mutant(
        "a last step that replaces itself frees the keys before its replacement has run",
        judged(
            "run/test_kept_keys.py",
            "test_a_step_that_replaces_itself_has_the_key_for_its_replacement",
        ),
        (KEPT_KEYS, "if keeps_reservation(unused):", "if False:"),
    ),
    mutant(
        "a last step brings keys that its own lock makes it give up",
        judged(
            "run/test_kept_keys.py",
            "test_a_last_step_with_a_lock_or_a_marker_of_its_own_finds_the_key_free",
        ),
        (
            KEPT_KEYS,
            'getattr(task.app.tasks.get(last.task), "redlock_plan", None) is None',
            "not _may_need(running_lock, last)",
        ),
    ),
    mutant(
        "keys are kept from a step that needs them",
        judged("run/test_kept_keys.py", "test_steps_that_lock_the_key_themselves_find_it_free"),
        (
            KEPT_KEYS,
            "any(_may_need(running_lock, step) for step in steps if step is not last)",
            "False",
        ),
    ),
)
