"""
Faults in the exclusion: two hold one lock, or one holds it longer than the nodes keep it.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled, tested

EXCLUSION = (
    fault(
        "a quorum is one node less",
        modelled("trust-stay"),
        ("protocol/timing.py::quorum", "return nodes // 2 + 1", "return nodes // 2"),
    ),
    fault(
        "trust counts from the answer",
        modelled("trust-stay"),
        (
            "protocol/rounds.py::AcquireRound.__init__",
            "self.valid_until = sent_at + ttl - drift(ttl, drift_factor)\n        self.token",
            "self.valid_until = ttl - drift(ttl, drift_factor)\nself.token",
        ),
        (
            "protocol/rounds.py::AcquireRound._first_quorum",
            "if now >= self.valid_until:\n            return self._enter(Phase.LATE)",
            "self.valid_until += now",
        ),
    ),
    fault(
        "late grants count",
        modelled("trust-stay"),
        (
            "protocol/rounds.py::AcquireRound._first_quorum",
            "if now >= self.valid_until:\n            return self._enter(Phase.LATE)",
            "",
        ),
    ),
    fault(
        "late second rounds count",
        modelled("trust-second"),
        (
            "protocol/rounds.py::AcquireRound._second_vote",
            "if self._granted >= self.needed:"
            " return self._enter(Phase.GRANTED if now < self.valid_until else Phase.LATE)",
            "if self._granted >= self.needed:\n    return self._enter(Phase.GRANTED)",
        ),
    ),
    fault(
        "no allowance for drift",
        modelled("trust-stay"),
        ("protocol/timing.py::drift", "return ttl * factor + EXPIRY_PRECISION", "return 0.0"),
    ),
    fault(
        "the drift factor is ignored",
        modelled("trust-drift"),
        (
            "protocol/timing.py::drift",
            "return ttl * factor + EXPIRY_PRECISION",
            "return EXPIRY_PRECISION",
        ),
    ),
    fault(
        "nodes keep keys for half the time",
        modelled("trust-stay"),
        (
            "core/attempt.py::_UnderWay._ask",
            "milliseconds(params.ttl),\n            owner_timestamp_us(self.owner) or 0",
            "milliseconds(params.ttl) // 2,\nowner_timestamp_us(self.owner) or 0",
        ),
    ),
    fault(
        "a lease does not look at the clock",
        modelled("trust-stay"),
        (
            "core/holding.py::Holding.is_valid",
            "return self.expires_in > 0.0",
            "return self._state is LeaseState.HELD",
        ),
    ),
    fault(
        "several keys are taken where one is free",
        modelled("trust-keys"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "if held:\n            if turns:",
            "if len(held) == len(call.keys):\n    if turns:",
        ),
    ),
    fault(
        "no restart guard",
        modelled("trust-restart"),
        ("protocol/node_model.py::ModelNode._quarantined", "if now_us >= not_before:", "if True:"),
    ),
    fault(
        "the restart guard ignores whose record it is",
        modelled("trust-restart"),
        (
            "protocol/node_model.py::ModelNode._quarantined",
            "if self.guard is not None and self.identity.has_lost_nothing_since(self.guard):",
            "if self.guard is not None:",
        ),
    ),
    fault(
        "the script ignores whose record it is",
        tested("test_nodes_that_may_have_forgotten_a_lease_do_not_grant_it_again"),
        (
            "protocol/lua/identity.lua::identified",
            "if is_master and not_before and string.sub(record, 41, 80) == id then",
            "if not_before then",
        ),
    ),
    fault(
        "quarantine is a millisecond short",
        modelled("trust-quarantine"),
        (
            "protocol/node_model.py::ModelNode._quarantined",
            "now_us + quarantine_ms * 1000",
            "now_us + (quarantine_ms - 1) * 1000",
        ),
    ),
    fault(
        "a clock that was ahead lengthens the quarantine",
        tested("test_meaning_a_clock_that_was_ahead_lengthens_no_quarantine"),
        (
            "protocol/node_model.py::ModelNode._quarantined",
            "if not_before > latest + _CLOCK_AHEAD_US:",
            "if False:",
        ),
    ),
    fault(
        "a client with a shorter max_ttl ends a quarantine early",
        tested("test_meaning_a_quarantine_of_a_client_with_a_longer_max_ttl_stays"),
        (
            "protocol/node_model.py::ModelNode._quarantined",
            "latest + _CLOCK_AHEAD_US:",
            "latest:",
        ),
    ),
    fault(
        "the script lets a client with a shorter max_ttl end a quarantine early",
        tested("test_a_client_with_a_shorter_max_ttl_ends_no_quarantine_early"),
        (
            "protocol/lua/guard.lua",
            "if ids or not_before > latest + 600000000 then\n"
            "not_before = not_before and not_before <= latest + 600000000",
            "if ids or not_before > latest then\nnot_before = not_before and not_before <= latest",
        ),
    ),
    fault(
        "the script lets a clock that was ahead lengthen the quarantine",
        tested(
            "test_a_quarantine_that_a_clock_ahead_has_begun_lasts_no_longer_once_the_clock_is_right"
        ),
        ("protocol/lua/guard.lua", "ids or not_before > latest + 600000000", "ids"),
    ),
    fault(
        "release deletes whatever is there",
        modelled("trust-three"),
        (
            "protocol/node_model.py::ModelNode._release",
            "is_ours = self.owner(key, now_us) == owner",
            "is_ours = self.owner(key, now_us) is not None",
        ),
    ),
    fault(
        "owner values are used again",
        modelled("trust-again"),
        (
            "core/attempt.py::_UnderWay._new_owner",
            "owner_value(os.urandom(16), candidate, params.label)",
            "owner_value(bytes(16), 0, params.label)",
        ),
    ),
    fault(
        "a failed attempt is undone only where it was granted",
        modelled("split-two"),
        (
            "core/attempt.py::_UnderWay._complete",
            "if round_.phase is not Phase.GRANTED:\n            self._undo()",
            "if round_.phase is not Phase.GRANTED:\n"
            '    granted = [n for n, vote in enumerate(round_.votes) if hasattr(vote, "low")]\n'
            "    self.channel.send(release(params.keys, self.owner, 0), granted)",
        ),
    ),
    fault(
        "a failed attempt is not undone",
        modelled("split-two"),
        (
            "core/attempt.py::_UnderWay._complete",
            "if round_.phase is not Phase.GRANTED:\n            self._undo()",
            "",
        ),
    ),
)
