"""
Faults in the register of a schedule, in what leaders note there, and in what workers make of it.
"""

from __future__ import annotations

from tests.mutants.writing import judged, modelled, mutant, tested

REGISTERS = "protocol/node_model.py"
RECORDING = "protocol/register_rounds.py"
REGISTER = "core/register.py"
RECORDS = "beat/schedule_state.py"
STATE = "tasks/ticks/entry_state.py"
NODE_KEYS = "tasks/message/node_keys.py"
STORE_LUA = "protocol/lua/write_register.lua"
FETCH_LUA = "protocol/lua/read_register.lua"

_REFUSAL = """            if self.token > int(token):
                return Superseded(self.token)
            self.token = int(token)
"""

REGISTER_FAULTS = (
    mutant(
        "a register takes what older tokens write",
        modelled("leaders-two"),
        (
            REGISTERS,
            "        if self.token > token:\n            return Superseded(self.token)\n",
            "",
        ),
    ),
    mutant(
        "a claim promises nothing",
        modelled("leaders-two"),
        (REGISTERS, "            self.token = int(token)\n", ""),
    ),
    mutant(
        "a claim only reads",
        modelled("leaders-two"),
        (REGISTER, "return self._read(checked_token(token), ())", "return self._read(0, ())"),
    ),
    mutant(
        "an older claim takes a newer promise back",
        modelled("leaders-two"),
        (REGISTERS, _REFUSAL, "            self.token = int(token)\n"),
    ),
    mutant(
        "what runs late replaces what is newer",
        modelled("leaders-reorder"),
        (REGISTERS, "if stored is None or stored.rank <= new.rank:", "if True:"),
    ),
    mutant(
        "one node less than a quorum settles a write or a claim",
        modelled("leaders-two"),
        (RECORDING, "if self._acks >= self.needed else", "if self._acks >= self.needed - 1 else"),
    ),
    mutant(
        "silence claims",
        modelled("leaders-silent"),
        (RECORDING, "if type(vote) is self._expected:", "if type(vote) is not Superseded:"),
    ),
    mutant(
        "of what nodes tell the first counts",
        modelled("leaders-two"),
        (RECORDING, "(known is None or value.rank > known.rank)", "known is None"),
    ),
    mutant(
        "of what nodes tell the oldest counts",
        modelled("leaders-two"),
        (RECORDING, "value.rank > known.rank", "value.rank < known.rank"),
    ),
    mutant(
        "tokens do not rank what is recorded",
        modelled("leaders-anew"),
        ("protocol/votes.py", "return (self.token, self.version)", "return (0, self.version)"),
    ),
    mutant(
        "write_register.lua compares versions as text",
        tested("test_registers.py", "test_a_field_keeps_its_newest_version"),
        (STORE_LUA, "at <= version", "string.format('%.0f', at) <= ARGV[i + 1]"),
    ),
    mutant(
        "write_register.lua asks only a newer claim, not a newer write",
        tested("test_registers.py", "test_a_write_needs_no_claim_and_shuts_out_older_tokens"),
        (STORE_LUA, "if seen < token then", "if seen > token then"),
    ),
    mutant(
        "read_register.lua promises nothing",
        tested("test_registers.py", "test_who_was_superseded_writes_and_claims_nothing"),
        (FETCH_LUA, "    redis.call('HSET', KEYS[1], 'token', ARGV[2])\n", ""),
    ),
)

LATE = (
    mutant(
        "every tick of a superseded leader is late",
        modelled("leaders-two"),
        (STATE, "return base is not None and tick.due_us > base", "return base is not None"),
    ),
    mutant(
        "the last tick that was recorded is late",
        modelled("leaders-two"),
        (STATE, "tick.due_us > base", "tick.due_us >= base"),
    ),
    mutant(
        "no tick is late",
        modelled("leaders-two"),
        (STATE, "return base is not None and tick.due_us > base", "return False"),
    ),
    mutant(
        "the last takeover decides what is late",
        modelled("leaders-chain"),
        (STATE, "base = next(bases, None)", "base = max(bases, default=None)"),
    ),
    mutant(
        "only the last takeover is remembered",
        modelled("leaders-chain"),
        (STATE, "MAX_TAKEOVERS = 16", "MAX_TAKEOVERS = 1"),
    ),
    mutant(
        "a takeover is not noted",
        modelled("leaders-two"),
        (STATE, "if token == previous_token:", "if True:"),
    ),
    mutant(
        "a takeover is noted with the tick that was sent",
        modelled("leaders-two"),
        (
            STATE,
            "takeovers = self._takeovers(token, previous_token)",
            "takeovers = replace(self, due=due)._takeovers(token, previous_token)",
        ),
    ),
    mutant(
        "what was sent of a begun tick is late",
        judged(
            "ticks/test_entry_state.py",
            "test_what_was_sent_of_a_tick_is_not_late_where_a_successor_sends_the_rest",
        ),
        (
            STATE,
            "last = self.due_us if self.begun is None else max(self.due_us, self.begun.due_us)",
            "last = self.due_us",
        ),
    ),
    mutant(
        "a begun tick is sent anew",
        judged("ticks/test_entry_state.py", "test_a_message_of_a_begun_tick_is_known_by_its_part"),
        (STATE, 'return (tick.part or "") in self.begun.parts', "return False"),
    ),
    mutant(
        "the messages of a begun tick have one version",
        judged("ticks/test_entry_state.py", "test_each_record_of_a_begun_tick_has_a_later_version"),
        (STATE, "            step=self.step + 1,", "            step=1,"),
    ),
    mutant(
        "a leader takes what it has found for its own",
        modelled("leaders-two"),
        (RECORDS, "self._writers[entry] = versioned.token", "self._writers[entry] = self._token"),
    ),
    mutant(
        "a leader forgets what it has found",
        modelled("leaders-two"),
        (
            RECORDS,
            "            self._states[entry] = state\n            self._writers",
            "            self._writers",
        ),
    ),
    mutant(
        "what begins an entry is not noted",
        modelled("leaders-anew"),
        (
            RECORDS,
            "        self._note(entry, replace(base, takeovers=((self._token, base.due_us),)))",
            "        self._note(entry, base)",
        ),
    ),
    mutant(
        "the messages of two leaders for one tick are two",
        modelled("leaders-two"),
        (
            NODE_KEYS,
            '"tick", tick.schedule, tick.entry, tick.due_us,',
            '"tick", tick.schedule, tick.entry, tick.due_us, tick.token,',
        ),
    ),
    mutant(
        "the messages of one tick are one",
        judged("message/test_tick.py", "test_other_work_has_another_place"),
        (NODE_KEYS, "part = () if tick.part is None else (tick.part,)", "part = ()"),
    ),
)
