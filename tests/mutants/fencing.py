"""
Faults in the tokens: they repeat, go backwards, or are no quorum's.
"""

from __future__ import annotations

from tests.mutants.writing import ATTEMPT, NODE, ROUNDS, modelled, mutant

FENCING = (
    mutant(
        "no second round",
        modelled("fence-equal"),
        (ROUNDS, "if self._exact >= self.needed:", "if self._granted >= self.needed:"),
    ),
    mutant(
        "one less than a quorum returned the token",
        modelled("fence-equal"),
        (ROUNDS, "if self._exact >= self.needed:", "if self._exact >= self.needed - 1:"),
    ),
    mutant(
        "the smallest counter is the token, and counters above it do not matter",
        modelled("fence-equal"),
        (
            ROUNDS,
            "if vote.high > self.token:",
            "if not self.token or vote.high < self.token:",
        ),
        (
            NODE,
            "if counter > int(token) or (counter == int(token) and holder is None):",
            "if False:",
        ),
    ),
    mutant(
        "the smaller of counter and candidate is taken",
        modelled("fence-equal"),
        (
            NODE,
            "max(self.fences.get(fence, 0) + 1, least)",
            "min(self.fences.get(fence, 0) + 1, least)",
        ),
    ),
    mutant(
        "a raise lowers counters",
        modelled("fence-equal"),
        (NODE, "max(self.fences.get(fence, 0), token)", "token"),
    ),
    mutant(
        "the second round writes less than the token",
        modelled("fence-equal"),
        (
            ATTEMPT,
            "raise_fence(params.node_keys, owner, round_.token)",
            "raise_fence(params.node_keys, owner, round_.token - 1)",
        ),
    ),
    mutant(
        "silence acknowledges",
        modelled("fence-equal"),
        (
            ROUNDS,
            """        if type(vote) is Acknowledged:
            self._granted += 1
            if self._granted""",
            """        if type(vote) in (Acknowledged, Failed):
            self._granted += 1
            if self._granted""",
        ),
    ),
    mutant(
        "counters do not count",
        modelled("fence-equal"),
        (NODE, "self.fences.get(fence, 0) + 1, least)", "self.fences.get(fence, 0), least)"),
    ),
    mutant(
        "counters are raised whoever has the key",
        modelled("fence-equal"),
        (
            NODE,
            """            if holder != owner and (holder is not None or not limit.slots):
                if not limit.period_ms:
                    return FOREIGN
                return NotHeld(False, (self.keys[slot].expires_at - now_us // 1000) / 1000)
            if holder is None:
""",
            """            if holder is None and limit.slots:
""",
        ),
    ),
    mutant(
        "a raise is acknowledged above the token",
        modelled("fence-equal"),
        (
            NODE,
            "if counter > int(token) or (counter == int(token) and holder is None):",
            "if False:",
        ),
    ),
    mutant(
        "counters end with the key",
        modelled("fence-equal"),
        (
            NODE,
            "        return ACKNOWLEDGED if ours ==",
            "        self.fences.clear()\n        return ACKNOWLEDGED if ours ==",
        ),
    ),
    mutant(
        "candidates are not clamped",
        modelled("fence-poison"),
        (NODE, "min(call.candidate, now_us + CANDIDATE_AHEAD_US)", "call.candidate"),
    ),
    mutant(
        "candidates are ignored",
        modelled("order-lost-counters"),
        (
            NODE,
            "max(self.fences.get(fence, 0) + 1, least)",
            "self.fences.get(fence, 0) + 1",
        ),
    ),
    mutant(
        "only the first key's counter is raised",
        modelled("fence-uneven"),
        (
            NODE,
            "token: int) -> None:\n        for fence in fences:",
            "token: int) -> None:\n        for fence in fences[:1]:",
        ),
    ),
    mutant(
        "a quorum for one key's token is enough",
        modelled("fence-uneven"),
        (ROUNDS, "if vote.low == self.token:", "if vote.high == self.token:"),
    ),
)
