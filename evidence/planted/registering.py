"""
Faults in the register of a schedule, in what leaders note there, and in what workers make of it.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled, tested

STORE_LUA = "protocol/lua/write_register.lua"
FETCH_LUA = "protocol/lua/read_register.lua"

REGISTER_FAULTS = (
    fault(
        "a register takes what older tokens write",
        modelled("leaders-two"),
        (
            "protocol/node_model.py::StoredRegister.write",
            "if self.token > token:\n            return Superseded(self.token)",
            "",
        ),
    ),
    fault(
        "a claim promises nothing",
        modelled("leaders-two"),
        ("protocol/node_model.py::StoredRegister.read", "self.token = int(token)", ""),
    ),
    fault(
        "a claim only reads",
        modelled("leaders-two"),
        (
            "core/register.py::Register.claim",
            "return self._read(checked_token(token), ())",
            "return self._read(0, ())",
        ),
    ),
    fault(
        "an older claim takes a newer promise back",
        modelled("leaders-two"),
        (
            "protocol/node_model.py::StoredRegister.read",
            "if self.token > int(token):\n"
            "                return Superseded(self.token)\n"
            "            self.token = int(token)",
            "self.token = int(token)",
        ),
    ),
    fault(
        "what runs late replaces what is newer",
        modelled("leaders-reorder"),
        (
            "protocol/node_model.py::StoredRegister.write",
            "if stored is None or stored.rank <= new.rank:",
            "if True:",
        ),
    ),
    fault(
        "one node less than a quorum settles a write or a claim",
        modelled("leaders-two"),
        (
            "protocol/rounds.py::RegisterRound.vote",
            "if self._acks >= self.needed else",
            "if self._acks >= self.needed - 1 else",
        ),
    ),
    fault(
        "silence claims",
        modelled("leaders-silent"),
        (
            "protocol/rounds.py::RegisterRound.vote",
            "if type(vote) is self._expected:",
            "if type(vote) is not Superseded:",
        ),
    ),
    fault(
        "of what nodes tell the first counts",
        modelled("leaders-two"),
        (
            "protocol/rounds.py::RegisterRound.fields",
            "(known is None or value.rank > known.rank)",
            "known is None",
        ),
    ),
    fault(
        "of what nodes tell the oldest counts",
        modelled("leaders-two"),
        (
            "protocol/rounds.py::RegisterRound.fields",
            "value.rank > known.rank",
            "value.rank < known.rank",
        ),
    ),
    fault(
        "tokens do not rank what is recorded",
        modelled("leaders-anew"),
        (
            "protocol/votes.py::VersionedValue.rank",
            "return (self.token, self.version)",
            "return (0, self.version)",
        ),
    ),
    fault(
        "write_register.lua compares versions as text",
        tested("test_a_field_keeps_its_newest_version"),
        (
            "protocol/lua/write_register.lua",
            "at <= version",
            "string.format('%.0f', at) <= ARGV[i + 1]",
        ),
    ),
    fault(
        "write_register.lua asks only a newer claim, not a newer write",
        tested("test_a_write_needs_no_claim_and_shuts_out_older_tokens"),
        (
            "protocol/lua/write_register.lua",
            "if seen < token then redis.call('HSET', KEYS[1], 'token', ARGV[2]) end",
            "if seen > token then redis.call('HSET', KEYS[1], 'token', ARGV[2]) end",
        ),
    ),
    fault(
        "read_register.lua promises nothing",
        tested("test_who_was_superseded_writes_and_claims_nothing"),
        (
            "protocol/lua/read_register.lua",
            "redis.call('HSET', KEYS[1], 'token', ARGV[2]) seen = token",
            "seen = token",
        ),
    ),
)

LATE = (
    fault(
        "a beat that is superseded campaigns again at once",
        tested("test_a_beat_that_is_superseded_campaigns_again_after_pauses_that_grow"),
        ("beat/candidate.py::Candidate.back_off", "0.0 if has_led else", "0.0 if True else"),
    ),
    fault(
        "the pauses of a beat that is superseded do not grow",
        tested("test_a_beat_that_is_superseded_campaigns_again_after_pauses_that_grow"),
        ("beat/candidate.py::Candidate.back_off", "2 * self._back_off", "self._back_off"),
    ),
    fault(
        "every tick of a superseded leader is late",
        modelled("leaders-two"),
        (
            "tasks/ticks/entry_state.py::is_superseded",
            "return base is not None and tick.due_us > base",
            "return base is not None",
        ),
    ),
    fault(
        "the last tick that was recorded is late",
        modelled("leaders-two"),
        ("tasks/ticks/entry_state.py::is_superseded", "tick.due_us > base", "tick.due_us >= base"),
    ),
    fault(
        "no tick is late",
        modelled("leaders-two"),
        (
            "tasks/ticks/entry_state.py::is_superseded",
            "return base is not None and tick.due_us > base",
            "return False",
        ),
    ),
    fault(
        "the last takeover decides what is late",
        modelled("leaders-chain"),
        (
            "tasks/ticks/entry_state.py::is_superseded",
            "base = next(bases, None)",
            "base = max(bases, default=None)",
        ),
    ),
    fault(
        "only the last takeover is remembered",
        modelled("leaders-chain"),
        ("tasks/ticks/entry_state.py::MAX_TAKEOVERS", "MAX_TAKEOVERS = 16", "MAX_TAKEOVERS = 1"),
    ),
    fault(
        "a takeover is not noted",
        modelled("leaders-two"),
        (
            "tasks/ticks/entry_state.py::EntryState._takeovers",
            "if token == self.token:",
            "if True:",
        ),
    ),
    fault(
        "a takeover is noted with the tick that was sent",
        modelled("leaders-two"),
        (
            "tasks/ticks/entry_state.py::EntryState.after",
            "takeovers = self.count + 1, self._takeovers(token)",
            "takeovers = self.count + 1, replace(self, due=due)._takeovers(token)",
        ),
    ),
    fault(
        "what was sent of a begun tick is late",
        tested("test_what_was_sent_of_a_tick_is_not_late_where_a_successor_sends_the_rest"),
        (
            "tasks/ticks/entry_state.py::EntryState._takeovers",
            "last = max(self.due_us, self.begun_us)",
            "last = self.due_us",
        ),
    ),
    fault(
        "a begun tick is sent anew",
        tested("test_a_message_of_a_begun_tick_is_known_by_its_part"),
        (
            "tasks/ticks/entry_state.py::EntryState.has_sent",
            'return self.begun_us == tick.due_us and (tick.part or "") in self.begun_parts',
            "return False",
        ),
    ),
    fault(
        "the messages of a begun tick have one version",
        tested("test_each_record_of_a_begun_tick_has_a_later_version"),
        (
            "tasks/ticks/entry_state.py::EntryState.with_part",
            "takeovers=self._takeovers(token), step=self.step + 1",
            "takeovers=self._takeovers(token), step=1",
        ),
    ),
    fault(
        "a leader takes what it has found for its own",
        modelled("leaders-two"),
        (
            "beat/schedule_state.py::ScheduleState._take_over",
            "else:\n            self._states[entry] = state",
            "else:\n    self._states[entry] = replace(state, token=self._token)",
        ),
    ),
    fault(
        "a leader forgets what it has found",
        modelled("leaders-two"),
        (
            "beat/schedule_state.py::ScheduleState._take_over",
            "else:\n            self._states[entry] = state",
            "",
        ),
    ),
    fault(
        "a leader repeats no record",
        tested("test_nodes_that_restart_empty_one_by_one_lose_no_tick"),
        (
            "beat/schedule_state.py::ScheduleState.claim",
            "self._repeat_at = self._now()",
            "self._repeat_at = math.inf",
        ),
    ),
    fault(
        "a leader repeats its records only once",
        tested("test_nodes_that_restart_empty_one_by_one_lose_no_tick"),
        (
            "beat/schedule_state.py::ScheduleState._repeat",
            "self._repeat_at = now + REPEATED_AFTER",
            "self._repeat_at = math.inf",
        ),
    ),
    fault(
        "a repeated record counts as a takeover",
        modelled("leaders-repeat-chain"),
        (
            "beat/schedule_state.py::ScheduleState._repeat",
            "self._note(entry, state)",
            "self._note(entry, replace(state, takeovers=state._takeovers(self._token)))",
        ),
    ),
    fault(
        "a beat that leads again remembers nothing",
        tested("test_a_beat_that_leads_again_remembers_what_all_nodes_have_lost"),
        (
            "beat/scheduler.py::RedlockScheduler._pass",
            "self._remembered = leadership.records",
            "pass",
        ),
    ),
    fault(
        "a beat remembers what another one has removed since",
        tested("test_what_another_leader_has_removed_since_is_not_remembered"),
        (
            "beat/schedule_state.py::ScheduleState.claim",
            "if last is None or last.token <= led_until:",
            "if True:",
        ),
    ),
    fault(
        "what a beat remembers replaces a newer record",
        tested("test_what_a_beat_remembers_of_its_last_leadership_replaces_only_an_older_record"),
        (
            "beat/schedule_state.py::ScheduleState.claim",
            "if entry not in found or found[entry].rank < own.rank:",
            "if True:",
        ),
    ),
    fault(
        "an entry that returned to run once more has run",
        tested("test_an_entry_that_returned_to_run_once_more_is_not_taken_for_one_that_has_run"),
        (
            "beat/inner_scheduler.py::catch_up",
            "has_returned = is_invented or recorded.returned_at > 0",
            "has_returned = is_invented",
        ),
    ),
    fault(
        "a leader has no entries of Celery's own",
        tested("test_a_leader_has_the_entries_of_an_ordinary_beat"),
        (
            "beat/inner_scheduler.py::DefaultScheduler.setup_schedule",
            "self.install_default_entries(self.schedule)",
            "pass",
        ),
    ),
    fault(
        "records of entries that run once are kept as long as others",
        tested("test_a_removed_entry_that_ran_at_most_once_is_forgotten_after_a_day"),
        (
            "beat/schedule_state.py::ScheduleState.note_schedule",
            "KEPT_AFTER_REMOVAL if state.count > 1 else KEPT_AFTER_ONE_RUN",
            "KEPT_AFTER_REMOVAL",
        ),
    ),
    fault(
        "what begins an entry is not noted",
        modelled("leaders-anew"),
        (
            "beat/schedule_state.py::ScheduleState.record_start",
            "self._note(entry, replace(base, takeovers=((self._token, base.due_us),)))",
            "self._note(entry, base)",
        ),
    ),
    fault(
        "the messages of two leaders for one tick are two",
        modelled("leaders-two"),
        (
            "tasks/message/node_keys.py::tick_dedupe_key",
            '"tick", tick.schedule, tick.entry, tick.due_us',
            '"tick", tick.schedule, tick.entry, tick.due_us, tick.token',
        ),
    ),
    fault(
        "the messages of one tick are one",
        tested("test_other_work_has_another_place"),
        (
            "tasks/message/node_keys.py::tick_dedupe_key",
            "part = () if tick.part is None else (tick.part,)",
            "part = ()",
        ),
    ),
)
