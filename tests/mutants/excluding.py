"""
Faults in the exclusion: two hold one lock, or one holds it longer than the nodes keep it.
"""

from __future__ import annotations

from tests.mutants.writing import (
    ATTEMPT,
    IDENTITY_LUA,
    NODE,
    ROUNDS,
    TIMING,
    TRUST,
    modelled,
    mutant,
    tested,
)

EXCLUSION = (
    mutant(
        "a quorum is one node less",
        modelled("trust-stay"),
        (TIMING, "return nodes // 2 + 1", "return nodes // 2"),
    ),
    mutant(
        "trust counts from the answer",
        modelled("trust-stay"),
        (
            ROUNDS,
            "self.valid_until = sent_at + ttl - drift(ttl, drift_factor)\n        self.token",
            "self.valid_until = ttl - drift(ttl, drift_factor)\n        self.token",
        ),
        (
            ROUNDS,
            "        if now >= self.valid_until:\n            return self._enter(Phase.LATE)",
            "        self.valid_until += now",
        ),
    ),
    mutant(
        "late grants count",
        modelled("trust-stay"),
        (
            ROUNDS,
            "        if now >= self.valid_until:\n            return self._enter(Phase.LATE)\n",
            "",
        ),
    ),
    mutant(
        "late second rounds count",
        modelled("trust-second"),
        (
            ROUNDS,
            "                return self._enter(Phase.GRANTED if now < self.valid_until "
            "else Phase.LATE)",
            "                return self._enter(Phase.GRANTED)",
        ),
    ),
    mutant(
        "no allowance for drift",
        modelled("trust-stay"),
        (TIMING, "return ttl * factor + EXPIRY_PRECISION", "return 0.0"),
    ),
    mutant(
        "the drift factor is ignored",
        modelled("trust-drift"),
        (TIMING, "return ttl * factor + EXPIRY_PRECISION", "return EXPIRY_PRECISION"),
    ),
    mutant(
        "nodes keep keys for half the time",
        modelled("trust-stay"),
        (
            ATTEMPT,
            "milliseconds(params.ttl),\n                candidate,",
            "milliseconds(params.ttl) // 2,\n                candidate,",
        ),
    ),
    mutant(
        "a lease does not look at the clock",
        modelled("trust-stay"),
        (TRUST, "return self.expires_in > 0.0", "return self._state is LeaseState.HELD"),
    ),
    mutant(
        "several keys are taken where one is free",
        modelled("trust-keys"),
        (
            NODE,
            "        if held:\n            return Refused(",
            "        if len(held) == len(call.keys):\n            return Refused(",
        ),
    ),
    mutant(
        "no restart guard",
        modelled("trust-restart"),
        (NODE, "if now_us >= not_before:", "if True:"),
    ),
    mutant(
        "the restart guard ignores whose record it is",
        modelled("trust-restart"),
        (
            NODE,
            "if self.guard is not None and self.identity.has_lost_nothing_since(self.guard):",
            "if self.guard is not None:",
        ),
    ),
    mutant(
        "the script ignores whose record it is",
        tested("test_guard.py", "test_nodes_that_may_have_forgotten_a_lease_do_not_grant_it_again"),
        (
            IDENTITY_LUA,
            "if is_master and not_before and string.sub(record, 41, 80) == id then",
            "if not_before then",
        ),
    ),
    mutant(
        "quarantine is a millisecond short",
        modelled("trust-quarantine"),
        (NODE, "now_us + quarantine_ms * 1000", "now_us + (quarantine_ms - 1) * 1000"),
    ),
    mutant(
        "release deletes whatever is there",
        modelled("trust-three"),
        (
            NODE,
            "is_ours = self.owner(key, now_us) == owner",
            "is_ours = self.owner(key, now_us) is not None",
        ),
    ),
    mutant(
        "owner values are used again",
        modelled("trust-again"),
        (
            ATTEMPT,
            "owner_value(os.urandom(16), candidate, params.label)",
            "owner_value(bytes(16), 0, params.label)",
        ),
    ),
    mutant(
        "a failed attempt is undone only where it was granted",
        modelled("split-two"),
        (
            ATTEMPT,
            """            if round_.phase is not Phase.GRANTED:
                _undo(transport, channel, params, owner, round_, acked)
""",
            """            if round_.phase is not Phase.GRANTED:
                granted = [n for n, vote in enumerate(round_.votes) if hasattr(vote, "low")]
                channel.send(release(params.node_keys, owner, 0), granted)
""",
        ),
    ),
    mutant(
        "a failed attempt is not undone",
        modelled("split-two"),
        (
            ATTEMPT,
            """            if round_.phase is not Phase.GRANTED:
                _undo(transport, channel, params, owner, round_, acked)
""",
            "",
        ),
    ),
)
