"""
Faults in the pauses of keys.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled, tested

PAUSING = (
    fault(
        "a pause ends early on nodes that were not connected yet",
        tested("test_a_node_that_is_still_connecting_is_waited_for"),
        ("core/pausing.py::_on_all_nodes", "not connects or transport.now() >= until", "True"),
    ),
    fault(
        "a node in quarantine is not paused",
        tested("test_a_node_in_quarantine_is_paused"),
        (
            "protocol/lua/pause.lua",
            "redis.call('SET', pause, ARGV[2], 'PX', ms)",
            "if redis.call('GET', 'redlock-meta:guard') then return {ARGV[1], 'Q', 1} end",
        ),
    ),
    fault(
        "a pause ends a holder's lease",
        modelled("pause-held"),
        (
            "protocol/node_model.py::ModelNode._pause",
            "self.keys[pause] = StoredKey(str(owner), until)",
            "self.keys.clear()\nself.keys[pause] = StoredKey(str(owner), until)",
        ),
    ),
    fault(
        "resume wakes nobody",
        modelled("pause-rate"),
        (
            "protocol/node_model.py::ModelNode._pause",
            "ordinary, limited = forms\nself._wake(pause, 0, now_us)",
            "ordinary, limited = forms",
        ),
    ),
    fault(
        "the script of resume wakes nobody",
        tested("test_who_is_refused_by_a_pause_is_woken_by_its_end"),
        ("protocol/lua/pause.lua", "wake(pause, 0)", ""),
    ),
    fault(
        "resume forgets those that waited before the pause",
        tested("test_who_waited_before_the_pause_is_woken_by_its_end"),
        (
            "protocol/lua/pause.lua",
            "if redis.call('PTTL', KEYS[3]) == -2 then wake(KEYS[3], 0) end",
            "",
        ),
    ),
    fault(
        "a rate grants during a pause",
        modelled("pause-rate"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "self._paused_for(key, now_us) if has_pauses else None",
            "self._paused_for(key, now_us) if has_pauses and not limit.period_ms else None",
        ),
    ),
    fault(
        "the script hands out a rate's turn during a pause",
        tested("test_a_paused_rate_gives_no_turn"),
        (
            "protocol/lua/acquire.lua",
            "if has_pauses then paused, pause = paused_for(key) end",
            "if has_pauses and ARGV[9 + 3 * i] == '0' then paused, pause = paused_for(key) end",
        ),
    ),
    fault(
        "a worker takes the lock of its message over during a pause",
        tested("test_a_pause_refuses_the_previous_owner"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "self._paused_for(key, now_us) if has_pauses else None",
            "self._paused_for(key, now_us) if has_pauses and not call.previous else None",
        ),
    ),
    fault(
        "a short pause ends the others",
        tested("test_a_shorter_pause_ends_no_longer_one"),
        (
            "protocol/lua/pause.lua",
            "if redis.call('PTTL', longest) < ms then redis.call",
            "do redis.call",
        ),
    ),
    fault(
        "a resume ends the others",
        tested("test_a_pause_that_ends_ends_no_other"),
        (
            "protocol/lua/pause.lua",
            "if redis.call('DEL', pause) == 0 then",
            "redis.call('DEL', longest)\n  if redis.call('DEL', pause) == 0 then",
        ),
    ),
    fault(
        "a release wakes messages in vain during a pause",
        tested("test_a_release_wakes_nobody_while_the_key_is_paused"),
        ("protocol/lua/wait_queue.lua::wake", "or paused_for(key) then", "then"),
    ),
    fault(
        "those that waited for an earlier pause are woken in place of others",
        tested("test_who_waited_for_an_earlier_pause_is_not_woken"),
        ("protocol/lua/pause.lua", "redis.call('DEL', queue_of(pause), woken_of(pause))", ""),
    ),
    fault(
        "a message whose key is paused gives up its lock",
        tested("test_the_lock_of_a_message_outlasts_refusals"),
        (
            "core/attempt.py::_UnderWay._is_held_by_another",
            "round_.taken_keys() - round_.taken_keys(PAUSED)",
            "round_.taken_keys()",
        ),
    ),
    fault(
        "no call is locked while its key is paused",
        tested("test_a_call_is_sent_with_its_lock_while_the_key_is_paused"),
        (
            "core/attempt.py::AcquireParams.passes_pauses",
            "self.as_reservation and not any(key.is_rate for key in self.keys)",
            "False",
        ),
    ),
    fault(
        "a call whose rate is counted at publish begins during a pause",
        tested("test_a_rate_that_the_publisher_takes_is_refused"),
        (
            "core/attempt.py::AcquireParams.passes_pauses",
            "self.as_reservation and not any(key.is_rate for key in self.keys)",
            "self.as_reservation",
        ),
    ),
    fault(
        "a message is skipped because its key is paused",
        modelled("rules-contention"),
        (
            "tasks/rules/arrival.py::CONTENTION",
            'Row("the key is paused", lambda c: c.holder is Holder.PAUSE, Action.WAIT),',
            "",
        ),
    ),
    fault(
        "a message comes back many times during a pause",
        tested("test_it_comes_back_within_a_second_of_the_end_whatever_its_ttl"),
        (
            "core/failures.py::Refusal.frees_later",
            "self.is_rate or self.is_paused",
            "self.is_rate",
        ),
    ),
    fault(
        "a worker starts messages in a circle while their free key is paused",
        tested("test_it_waits_for_the_pause_and_the_key"),
        (
            "tasks/run/requeue.py::_waits_for",
            "[*map(in_header, keys), *dict.fromkeys(pauses)]",
            "list(map(in_header, keys))",
        ),
    ),
    fault(
        "a look never starts a message that has its lock when its pause is over",
        tested("test_a_message_with_a_lock_waits_for_nothing_that_it_has"),
        (
            "tasks/run/requeue.py::_waits_for",
            "if key.stored not in reserved",
            "if key.stored",
        ),
    ),
    fault(
        "of many messages one starts at each look once their pause is over",
        tested("test_where_they_wait_for_nothing_else_all_start"),
        (
            "tasks/waiting_messages.py::WaitingMessages._free",
            "len(self._held) if key.startswith(PAUSE_PREFIX) else 1",
            "1",
        ),
    ),
    fault(
        "a release of the key ends its pause",
        tested("test_a_release_of_the_key_leaves_the_pause"),
        ("admin/lock_release.py::_is_wanted", "only is None and entry.is_pause", "False"),
    ),
)
