"""
Faults in the tokens: they repeat, go backwards, or are no quorum's.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled

FENCING = (
    fault(
        "no second round",
        modelled("fence-equal"),
        (
            "protocol/rounds.py::AcquireRound._first_quorum",
            "if self._exact >= self.needed:",
            "if self._granted >= self.needed:",
        ),
    ),
    fault(
        "one less than a quorum returned the token",
        modelled("fence-equal"),
        (
            "protocol/rounds.py::AcquireRound._first_quorum",
            "if self._exact >= self.needed:",
            "if self._exact >= self.needed - 1:",
        ),
    ),
    fault(
        "the smallest counter is the token, and counters above it do not matter",
        modelled("fence-equal"),
        (
            "protocol/rounds.py::AcquireRound.vote",
            "if vote.high > self.token:",
            "if not self.token or vote.high < self.token:",
        ),
        (
            "protocol/node_model.py::ModelNode._raise",
            "if counter > int(token) or (counter == int(token) and holder is None):",
            "if False:",
        ),
    ),
    fault(
        "the smaller of counter and candidate is taken",
        modelled("fence-equal"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "max(self.fences.get(fence, 0) + 1, least)",
            "min(self.fences.get(fence, 0) + 1, least)",
        ),
    ),
    fault(
        "a raise lowers counters",
        modelled("fence-equal"),
        (
            "protocol/node_model.py::ModelNode._raise_counters",
            "max(self.fences.get(fence, 0), token)",
            "token",
        ),
    ),
    fault(
        "the second round writes less than the token",
        modelled("fence-equal"),
        (
            "core/attempt.py::_UnderWay._second_command",
            "raise_fence(params.keys, owner, round_.token)",
            "raise_fence(params.keys, owner, round_.token - 1)",
        ),
    ),
    fault(
        "silence acknowledges",
        modelled("fence-equal"),
        (
            "protocol/rounds.py::AcquireRound._second_vote",
            "if type(vote) is Acknowledged:\n"
            "            self._granted += 1\n"
            "            if self._granted",
            "if type(vote) in (Acknowledged, Failed):\n"
            "    self._granted += 1\n"
            "    if self._granted",
        ),
    ),
    fault(
        "counters do not count",
        modelled("fence-equal"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "self.fences.get(fence, 0) + 1, least)",
            "self.fences.get(fence, 0), least)",
        ),
    ),
    fault(
        "counters are raised whoever has the key",
        modelled("fence-equal"),
        (
            "protocol/node_model.py::ModelNode._raise",
            "if holder != owner and (holder is not None or not limit.slots):\n"
            "                if not limit.period_ms:\n"
            "                    return FOREIGN\n"
            "                return NotHeld("
            "False, self._expires_in(slot, now_us))\n"
            "            if holder is None:",
            "if holder is None and limit.slots:",
        ),
    ),
    fault(
        "a raise is acknowledged above the token",
        modelled("fence-equal"),
        (
            "protocol/node_model.py::ModelNode._raise",
            "if counter > int(token) or (counter == int(token) and holder is None):",
            "if False:",
        ),
    ),
    fault(
        "counters end with the key",
        modelled("fence-equal"),
        (
            "protocol/node_model.py::ModelNode._release",
            "return ACKNOWLEDGED if ours ==",
            "self.fences.clear()\nreturn ACKNOWLEDGED if ours ==",
        ),
    ),
    fault(
        "candidates are not clamped",
        modelled("fence-poison"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "min(call.candidate, now_us + CANDIDATE_AHEAD_US)",
            "call.candidate",
        ),
    ),
    fault(
        "candidates are ignored",
        modelled("order-lost-counters"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "max(self.fences.get(fence, 0) + 1, least)",
            "self.fences.get(fence, 0) + 1",
        ),
    ),
    fault(
        "only the first key's counter is raised",
        modelled("fence-uneven"),
        (
            "protocol/node_model.py::ModelNode._raise_counters",
            "token: int) -> None:\n        for fence in fences:",
            "token: int) -> None:\n    for fence in fences[:1]:",
        ),
    ),
    fault(
        "a quorum for one key's token is enough",
        modelled("fence-uneven"),
        (
            "protocol/rounds.py::AcquireRound.vote",
            "if vote.low == self.token:",
            "if vote.high == self.token:",
        ),
    ),
)
