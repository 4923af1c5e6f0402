"""
The faults, and what must see each. Faults that change nothing anybody can rely on are listed too.
"""

from __future__ import annotations

from tests.mutants.handing_over import HAND_OVER
from tests.mutants.registering import LATE, REGISTER_FAULTS
from tests.mutants.writing import (
    ATTEMPT,
    CHANNEL,
    CLOCK,
    LEASE,
    LINK,
    NODE,
    ROUNDS,
    TIMING,
    TRUST,
    modelled,
    mutant,
    simulated,
)

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
            "if any(self.fences.get(fence, 0) > int(token) for fence in fences):",
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
            "raise_fence(terms.keys, owner, round_.token)",
            "raise_fence(terms.keys, owner, round_.token - 1)",
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
            """        if any(held_by != owner for held_by in owners):
            return FOREIGN
        # A counter""",
            """        # A counter""",
        ),
    ),
    mutant(
        "a raise is acknowledged above the token",
        modelled("fence-equal"),
        (
            NODE,
            "if any(self.fences.get(fence, 0) > int(token) for fence in fences):",
            "if False:",
        ),
    ),
    mutant(
        "counters end with the key",
        modelled("fence-equal"),
        (
            NODE,
            "        return ACKNOWLEDGED if all(",
            "        self.fences.clear()\n        return ACKNOWLEDGED if all(",
        ),
    ),
    mutant(
        "candidates are not clamped",
        modelled("fence-poison"),
        (NODE, "min(int(candidate), now_us + CANDIDATE_AHEAD_US)", "int(candidate)"),
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
            "self.trusted_until = sent_at + ttl - drift(ttl, drift_factor)\n        self.token",
            "self.trusted_until = ttl - drift(ttl, drift_factor)\n        self.token",
        ),
        (
            ROUNDS,
            "        if now >= self.trusted_until:\n            return self._enter(Phase.LATE)",
            "        self.trusted_until += now",
        ),
    ),
    mutant(
        "late grants count",
        modelled("trust-stay"),
        (
            ROUNDS,
            "        if now >= self.trusted_until:\n            return self._enter(Phase.LATE)\n",
            "",
        ),
    ),
    mutant(
        "late second rounds count",
        modelled("trust-second"),
        (
            ROUNDS,
            "                return self._enter(Phase.GRANTED if now < self.trusted_until "
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
            "            milliseconds(terms.ttl),\n",
            "            milliseconds(terms.ttl) // 2,\n",
        ),
    ),
    mutant(
        "a lease does not look at the clock",
        modelled("trust-stay"),
        (TRUST, "return self.expires_in > 0.0", "return self._state is State.HELD"),
    ),
    mutant(
        "several keys are taken where one is free",
        modelled("trust-keys"),
        (NODE, "        if held:\n", "        if len(held) == len(keys):\n"),
    ),
    mutant(
        "no restart guard",
        modelled("trust-restart"),
        (NODE, "if now_us < self.guard.not_before:", "if False:"),
    ),
    mutant(
        "the restart guard ignores whose record it is",
        modelled("trust-restart"),
        (
            NODE,
            "if self.guard is None or self.guard.identity != self.identity:",
            "if self.guard is None:",
        ),
    ),
    mutant(
        "quarantine is a millisecond short",
        modelled("trust-quarantine"),
        (NODE, "now_us + int(quarantine) * 1000", "now_us + (int(quarantine) - 1) * 1000"),
    ),
    mutant(
        "release deletes whatever is there",
        modelled("trust-three"),
        (
            NODE,
            "            if held_by == owner:\n                value:",
            "            if held_by is not None:\n                value:",
        ),
    ),
    mutant(
        "owner values are used again",
        modelled("trust-again"),
        (
            ATTEMPT,
            "owner_value(os.urandom(16), candidate, terms.label)",
            "owner_value(bytes(16), 0, terms.label)",
        ),
    ),
    mutant(
        "a failed attempt is undone only where it was granted",
        modelled("split-two"),
        (
            ATTEMPT,
            """        if round_.phase is not Phase.GRANTED:
            _undo(transport, channel, terms, owner, done)
""",
            """        if round_.phase is not Phase.GRANTED:
            granted = [n for n, vote in enumerate(round_.votes) if hasattr(vote, "low")]
            channel.post(release(terms.keys, owner, 0), granted)
""",
        ),
    ),
    mutant(
        "a failed attempt is not undone",
        modelled("split-two"),
        (
            ATTEMPT,
            """        if round_.phase is not Phase.GRANTED:
            _undo(transport, channel, terms, owner, done)
""",
            "",
        ),
    ),
)

EXTENSION = (
    mutant(
        "an extension counts from the answer",
        modelled("trust-extend"),
        (
            ROUNDS,
            "self.trusted_until = max(trusted_until, sent_at + ttl - drift(ttl, drift_factor))",
            "self.trusted_until = ttl - drift(ttl, drift_factor)",
        ),
        (
            ROUNDS,
            "            if self._extended >= self.needed:\n",
            "            if self._extended >= self.needed:\n"
            "                self.trusted_until += now\n",
        ),
    ),
    mutant(
        "one node extends",
        modelled("trust-extend"),
        (ROUNDS, "if self._extended >= self.needed:", "if self._extended:"),
    ),
    mutant(
        "an extension is acknowledged whoever has the key",
        modelled("trust-extend"),
        (
            NODE,
            "        if all(held_by == owner for held_by in owners):\n            return ACK",
            "        if True:\n            return ACK",
        ),
    ),
    mutant(
        "an extension shortens",
        modelled("trust-shorter"),
        (NODE, "max(stored.expires_at, until)", "until"),
    ),
    mutant(
        "nodes do not extend",
        modelled("trust-extend"),
        (NODE, "max(stored.expires_at, until)", "stored.expires_at"),
    ),
    mutant(
        "late extensions count",
        modelled("trust-extend"),
        (ROUNDS, "Phase.GRANTED if now < self._old_trust else Phase.LATE", "Phase.GRANTED"),
        (LEASE, " or self._transport.now() >= old_trust", ""),
    ),
    mutant(
        "an extension is taken over, and heals, after the deadline",
        modelled("trust-heal"),
        (LEASE, " or self._transport.now() >= old_trust", ""),
    ),
    mutant(
        "a heal counts for the extension",
        modelled("trust-missing"),
        (
            ROUNDS,
            "        if type(vote) is Acknowledged:\n            self._extended += 1",
            "        if type(vote) is Acknowledged or (type(vote) is NotHeld and vote.missing):\n"
            "            self._extended += 1",
        ),
    ),
    mutant(
        "a heal takes keys from others",
        modelled("trust-heal"),
        (
            NODE,
            """        if any(held_by not in (owner, None) for held_by in owners):
            return FOREIGN
        for key, held_by in zip(keys, owners, strict=True):
            if held_by is None:""",
            """        for key, held_by in zip(keys, owners, strict=True):
            if held_by != owner:""",
        ),
    ),
)

VOTES = (
    mutant(
        "one node's word is a conflict",
        modelled("split-two"),
        (ROUNDS, "if most >= self.needed:", "if most:"),
    ),
    mutant(
        "a split vote is a conflict",
        modelled("split-two"),
        (ROUNDS, "return self._enter(Phase.SPLIT)", "return self._enter(Phase.CONTENDED)"),
    ),
    mutant(
        "different owners make one conflict",
        modelled("split-three"),
        (ROUNDS, "(holder.key, holder.owner)\n", "holder.key\n"),
    ),
)

TRANSPORT = (
    mutant(
        "a leftover reply is taken for the next answer",
        simulated("late", "1-400"),
        (LINK, "and reply[0] == pending.nonce", ""),
        (
            CHANNEL,
            "        self._number += 1\n",
            "        self._number += 1\n"
            "        for old in self._links:\n"
            "            if old is not None:\n"
            "                old.pending.clear()\n",
        ),
    ),
    mutant(
        "a finished message leaves no mark",
        simulated("late", "1-60"),
        (
            "core/redlock.py",
            "            extras=extras,\n            previous=reservation,",
            "            extras=() if names else extras,\n            previous=reservation,",
        ),
    ),
    mutant(
        "the clock stands still in a suspend",
        simulated("suspend", "1-400"),
        (CLOCK, "_BOOTTIME = time.CLOCK_BOOTTIME", "_BOOTTIME = time.CLOCK_MONOTONIC"),
    ),
)

MUTANTS = (
    *(*FENCING, *EXCLUSION, *EXTENSION, *VOTES, *HAND_OVER, *TRANSPORT),
    *(*REGISTER_FAULTS, *LATE),
)

#: Faults that cannot be seen, and why; they are not planted.
EQUIVALENT: dict[str, str] = {
    "extend and release do not raise the counters": (
        "order and uniqueness follow from the quorum of the acquire alone; raising elsewhere keeps "
        "counters of a minority close, which saves second rounds"
    ),
    "the nonce of a reply is not looked at": (
        "replies are matched first in, first out, so a nonce never differs unless that breaks as "
        "well; planted together with it"
    ),
    "only the smallest counter is the token": (
        "a node with a larger counter refuses the second round, so the token is on a quorum "
        "of equal counters or not given; planted together with that refusal gone"
    ),
    "only ExtendRound's lateness check is gone": (
        "Lease.settle_extension looks at the clock again, later; both are gone in a mutant"
    ),
    "LATE one comparison later (now > trusted_until)": (
        "a lease that is granted at the instant when trust ends is not valid at any instant"
    ),
    "ExtendRound.trusted_until without max": "Lease.settle_extension takes the larger anyway",
    "a node's second answer in a round counts": "a transport gives one answer for each command",
}
