"""
The faults, and what must see each. Faults that change nothing anybody can rely on are listed too.
"""

from __future__ import annotations

from tests.mutants.planting import Edit, Mutant

ATTEMPT = "core/attempt.py"
LEASE = "core/lease.py"
NODE = "protocol/node.py"
ROUNDS = "protocol/rounds.py"
TIMING = "protocol/timing.py"
TRUST = "core/trust.py"
CHANNEL = "transport/channel.py"
CLOCK = "transport/clock.py"
LINK = "transport/link.py"
RELEASING = "core/releasing.py"


def _modelled(setting: str, limit: int = 400_000) -> tuple[str, ...]:
    return ("tests.models", setting, "--limit", str(limit))


def _simulated(profile: str, seeds: str) -> tuple[str, ...]:
    return ("tests.simulation", "--profile", profile, "--seeds", seeds, "--no-shrink")


def _mutant(name: str, killer: tuple[str, ...], *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name=name, killer=killer, edits=tuple(Edit(*edit) for edit in edits))


FENCING = (
    _mutant(
        "no second round",
        _modelled("fence-equal"),
        (ROUNDS, "if self._exact >= self.needed:", "if self._granted >= self.needed:"),
    ),
    _mutant(
        "one less than a quorum returned the token",
        _modelled("fence-equal"),
        (ROUNDS, "if self._exact >= self.needed:", "if self._exact >= self.needed - 1:"),
    ),
    _mutant(
        "the smallest counter is the token, and counters above it do not matter",
        _modelled("fence-equal"),
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
    _mutant(
        "the smaller of counter and candidate is taken",
        _modelled("fence-equal"),
        (
            NODE,
            "max(self.fences.get(fence, 0) + 1, least)",
            "min(self.fences.get(fence, 0) + 1, least)",
        ),
    ),
    _mutant(
        "a raise lowers counters",
        _modelled("fence-equal"),
        (NODE, "max(self.fences.get(fence, 0), token)", "token"),
    ),
    _mutant(
        "the second round writes less than the token",
        _modelled("fence-equal"),
        (
            ATTEMPT,
            "raise_fence(terms.keys, owner, round_.token)",
            "raise_fence(terms.keys, owner, round_.token - 1)",
        ),
    ),
    _mutant(
        "silence acknowledges",
        _modelled("fence-equal"),
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
    _mutant(
        "counters do not count",
        _modelled("fence-equal"),
        (NODE, "self.fences.get(fence, 0) + 1, least)", "self.fences.get(fence, 0), least)"),
    ),
    _mutant(
        "counters are raised whoever has the key",
        _modelled("fence-equal"),
        (
            NODE,
            """        if any(held_by != owner for held_by in owners):
            return FOREIGN
        # A counter""",
            """        # A counter""",
        ),
    ),
    _mutant(
        "a raise is acknowledged above the token",
        _modelled("fence-equal"),
        (
            NODE,
            "if any(self.fences.get(fence, 0) > int(token) for fence in fences):",
            "if False:",
        ),
    ),
    _mutant(
        "counters end with the key",
        _modelled("fence-equal"),
        (
            NODE,
            "        return ACKNOWLEDGED if all(",
            "        self.fences.clear()\n        return ACKNOWLEDGED if all(",
        ),
    ),
    _mutant(
        "candidates are not clamped",
        _modelled("fence-poison"),
        (NODE, "min(int(candidate), now_us + CANDIDATE_AHEAD_US)", "int(candidate)"),
    ),
    _mutant(
        "candidates are ignored",
        _modelled("order-lost-counters"),
        (
            NODE,
            "max(self.fences.get(fence, 0) + 1, least)",
            "self.fences.get(fence, 0) + 1",
        ),
    ),
    _mutant(
        "only the first key's counter is raised",
        _modelled("fence-uneven"),
        (
            NODE,
            "token: int) -> None:\n        for fence in fences:",
            "token: int) -> None:\n        for fence in fences[:1]:",
        ),
    ),
    _mutant(
        "a quorum for one key's token is enough",
        _modelled("fence-uneven"),
        (ROUNDS, "if vote.low == self.token:", "if vote.high == self.token:"),
    ),
)

EXCLUSION = (
    _mutant(
        "a quorum is one node less",
        _modelled("trust-stay"),
        (TIMING, "return nodes // 2 + 1", "return nodes // 2"),
    ),
    _mutant(
        "trust counts from the answer",
        _modelled("trust-stay"),
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
    _mutant(
        "late grants count",
        _modelled("trust-stay"),
        (
            ROUNDS,
            "        if now >= self.trusted_until:\n            return self._enter(Phase.LATE)\n",
            "",
        ),
    ),
    _mutant(
        "late second rounds count",
        _modelled("trust-second"),
        (
            ROUNDS,
            "                return self._enter(Phase.GRANTED if now < self.trusted_until "
            "else Phase.LATE)",
            "                return self._enter(Phase.GRANTED)",
        ),
    ),
    _mutant(
        "no allowance for drift",
        _modelled("trust-stay"),
        (TIMING, "return ttl * factor + EXPIRY_PRECISION", "return 0.0"),
    ),
    _mutant(
        "the drift factor is ignored",
        _modelled("trust-drift"),
        (TIMING, "return ttl * factor + EXPIRY_PRECISION", "return EXPIRY_PRECISION"),
    ),
    _mutant(
        "nodes keep keys for half the time",
        _modelled("trust-stay"),
        (
            ATTEMPT,
            "            milliseconds(terms.ttl),\n",
            "            milliseconds(terms.ttl) // 2,\n",
        ),
    ),
    _mutant(
        "a lease does not look at the clock",
        _modelled("trust-stay"),
        (TRUST, "return self.expires_in > 0.0", "return self._state is State.HELD"),
    ),
    _mutant(
        "several keys are taken where one is free",
        _modelled("trust-keys"),
        (NODE, "        if held:\n", "        if len(held) == len(keys):\n"),
    ),
    _mutant(
        "no restart guard",
        _modelled("trust-restart"),
        (NODE, "if now_us < self.guard.not_before:", "if False:"),
    ),
    _mutant(
        "the restart guard ignores whose record it is",
        _modelled("trust-restart"),
        (
            NODE,
            "if self.guard is None or self.guard.identity != self.identity:",
            "if self.guard is None:",
        ),
    ),
    _mutant(
        "quarantine is a millisecond short",
        _modelled("trust-quarantine"),
        (NODE, "now_us + int(quarantine) * 1000", "now_us + (int(quarantine) - 1) * 1000"),
    ),
    _mutant(
        "release deletes whatever is there",
        _modelled("trust-three"),
        (
            NODE,
            "            if held_by == owner:\n                value:",
            "            if held_by is not None:\n                value:",
        ),
    ),
    _mutant(
        "owner values are used again",
        _modelled("trust-again"),
        (
            ATTEMPT,
            "owner_value(os.urandom(16), candidate, terms.label)",
            "owner_value(bytes(16), 0, terms.label)",
        ),
    ),
    _mutant(
        "a failed attempt is undone only where it was granted",
        _modelled("split-two"),
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
    _mutant(
        "a failed attempt is not undone",
        _modelled("split-two"),
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
    _mutant(
        "an extension counts from the answer",
        _modelled("trust-extend"),
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
    _mutant(
        "one node extends",
        _modelled("trust-extend"),
        (ROUNDS, "if self._extended >= self.needed:", "if self._extended:"),
    ),
    _mutant(
        "an extension is acknowledged whoever has the key",
        _modelled("trust-extend"),
        (
            NODE,
            "        if all(held_by == owner for held_by in owners):\n            return ACK",
            "        if True:\n            return ACK",
        ),
    ),
    _mutant(
        "an extension shortens",
        _modelled("trust-shorter"),
        (NODE, "max(stored.expires_at, until)", "until"),
    ),
    _mutant(
        "nodes do not extend",
        _modelled("trust-extend"),
        (NODE, "max(stored.expires_at, until)", "stored.expires_at"),
    ),
    _mutant(
        "late extensions count",
        _modelled("trust-extend"),
        (ROUNDS, "Phase.GRANTED if now < self._old_trust else Phase.LATE", "Phase.GRANTED"),
        (LEASE, " or self._transport.now() >= old_trust", ""),
    ),
    _mutant(
        "an extension is taken over, and heals, after the deadline",
        _modelled("trust-heal"),
        (LEASE, " or self._transport.now() >= old_trust", ""),
    ),
    _mutant(
        "a heal counts for the extension",
        _modelled("trust-missing"),
        (
            ROUNDS,
            "        if type(vote) is Acknowledged:\n            self._extended += 1",
            "        if type(vote) is Acknowledged or (type(vote) is NotHeld and vote.missing):\n"
            "            self._extended += 1",
        ),
    ),
    _mutant(
        "a heal takes keys from others",
        _modelled("trust-heal"),
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
    _mutant(
        "one node's word is a conflict",
        _modelled("split-two"),
        (ROUNDS, "if most >= self.needed:", "if most:"),
    ),
    _mutant(
        "a split vote is a conflict",
        _modelled("split-two"),
        (ROUNDS, "return self._enter(Phase.SPLIT)", "return self._enter(Phase.CONTENDED)"),
    ),
    _mutant(
        "different owners make one conflict",
        _modelled("split-three"),
        (ROUNDS, "(holder.key, holder.owner)\n", "holder.key\n"),
    ),
)

TRANSPORT = (
    _mutant(
        "a leftover reply is taken for the next answer",
        _simulated("late", "1-400"),
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
    _mutant(
        "a finished message leaves no mark",
        _simulated("late", "1-60"),
        (
            "core/redlock.py",
            "            extras=extras,\n            previous=reservation,",
            "            extras=() if names else extras,\n            previous=reservation,",
        ),
    ),
    _mutant(
        "the clock stands still in a suspend",
        _simulated("suspend", "1-400"),
        (CLOCK, "_BOOTTIME = time.CLOCK_BOOTTIME", "_BOOTTIME = time.CLOCK_MONOTONIC"),
    ),
)

_GIVEN_BACK = """    channel.post(release(terms.keys, owner, 0, fates=fates), there)
    channel.post(undoing, [node for node in range(len(transport.names)) if node not in there])
"""

HAND_OVER = (
    _mutant(
        "a takeover is not guarded",
        _modelled("hand-restart"),
        (NODE, "if int(quarantine) > 0:", "if int(quarantine) > 0 and not more:"),
    ),
    _mutant(
        "a takeover ignores whose lock it is",
        _modelled("hand-twins"),
        (NODE, "if holder is not None and holder not in more:", "if holder and not more:"),
    ),
    _mutant(
        "a takeover takes the lock although the message's mark is refused",
        _modelled("hand-mark"),
        (
            NODE,
            "        if held:\n            return Held(tuple(held))\n",
            "        for key in keys:\n"
            "            if self.owner(key, now_us) in more:\n"
            "                self.keys[key] = StoredKey(str(owner), now_us // 1000 + int(ttl))\n"
            "        if held:\n            return Held(tuple(held))\n",
        ),
    ),
    _mutant(
        "a takeover does not count",
        _modelled("hand-back"),
        (
            NODE,
            "self.fences.get(fence, 0) + 1, least)",
            "self.fences.get(fence, 0) + (0 if more else 1), least)",
        ),
    ),
    _mutant(
        "a takeover needs no second round",
        _modelled("hand-vanish"),
        (
            ATTEMPT,
            "(ReserveRound if terms.for_another else AcquireRound)(",
            "(ReserveRound if terms.for_another or previous else AcquireRound)(",
        ),
    ),
    _mutant(
        "what is taken over keeps its long life",
        _modelled("hand-twins"),
        (
            NODE,
            "            self.keys[key] = StoredKey(str(owner), expires_at)\n",
            "            old = self.keys.get(key)\n"
            "            until = expires_at if old is None else old.expires_at\n"
            "            self.keys[key] = StoredKey(str(owner), until)\n",
        ),
    ),
    _mutant(
        "a failed takeover deletes the reservation",
        _modelled("hand-kept"),
        (ATTEMPT, "    if previous is None or left <= 0:\n", "    if True:\n"),
    ),
    _mutant(
        "a failed takeover gives back where nobody has answered",
        _modelled("hand-kept"),
        (
            ATTEMPT,
            _GIVEN_BACK,
            "    channel.post(release(terms.keys, owner, 0, fates=fates))\n",
        ),
    ),
    _mutant(
        "a failed takeover gives back only what was counted",
        _modelled("hand-kept"),
        (ATTEMPT, "    there = sorted(done or ())\n", "    there = sorted(done or ())[:1]\n"),
    ),
    _mutant(
        "a mark is deleted with the lock",
        _modelled("hand-twins"),
        (NODE, "                if fates:\n", "                if False:\n"),
    ),
    _mutant(
        "a hand back takes the lock from whoever has it",
        _modelled("hand-back"),
        (
            NODE,
            "            if held_by == owner:\n                value:",
            "            if held_by == owner or (fates and held_by):\n                value:",
        ),
    ),
    _mutant(
        "a hand back is set for long at once",
        _modelled("hand-back"),
        (
            LEASE,
            "Fate(min(left, milliseconds(grace)), reservation.owner)",
            "Fate(left, reservation.owner)",
        ),
    ),
    _mutant(
        "a reservation is lengthened on nodes that have not answered",
        _modelled("hand-publish"),
        (
            RELEASING,
            "extend(given.keys, given.owner, left, 0), done)",
            "extend(given.keys, given.owner, left, 0), type(done)(range(len(transport.names))))",
        ),
    ),
    _mutant(
        "what a minority kept of a used reservation stays",
        _modelled("hand-left"),
        (LEASE, "        if left_behind:\n", "        if False:\n"),
    ),
)

MUTANTS = (*FENCING, *EXCLUSION, *EXTENSION, *VOTES, *HAND_OVER, *TRANSPORT)

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
