"""
Faults in how the lock of a message changes hands.
"""

from __future__ import annotations

from tests.mutants.writing import (
    ATTEMPT,
    LEASE,
    NODE,
    RELEASING,
    modelled,
    mutant,
)

_GIVEN_BACK = """    channel.post(release(terms.keys, owner, 0, fates=fates), there)
    channel.post(undoing, [node for node in range(len(transport.names)) if node not in there])
"""

HAND_OVER = (
    mutant(
        "a takeover is not guarded",
        modelled("hand-restart"),
        (NODE, "if int(quarantine) > 0:", "if int(quarantine) > 0 and not more:"),
    ),
    mutant(
        "a takeover ignores whose lock it is",
        modelled("hand-twins"),
        (NODE, "if holder is not None and holder not in more:", "if holder and not more:"),
    ),
    mutant(
        "a takeover takes the lock although the message's mark is refused",
        modelled("hand-mark"),
        (
            NODE,
            "        if held:\n            return Held(tuple(held))\n",
            "        for key in keys:\n"
            "            if self.owner(key, now_us) in more:\n"
            "                self.keys[key] = StoredKey(str(owner), now_us // 1000 + int(ttl))\n"
            "        if held:\n            return Held(tuple(held))\n",
        ),
    ),
    mutant(
        "a takeover does not count",
        modelled("hand-back"),
        (
            NODE,
            "self.fences.get(fence, 0) + 1, least)",
            "self.fences.get(fence, 0) + (0 if more else 1), least)",
        ),
    ),
    mutant(
        "a takeover needs no second round",
        modelled("hand-vanish"),
        (
            ATTEMPT,
            "(ReserveRound if terms.for_another else AcquireRound)(",
            "(ReserveRound if terms.for_another or previous else AcquireRound)(",
        ),
    ),
    mutant(
        "what is taken over keeps its long life",
        modelled("hand-twins"),
        (
            NODE,
            "            self.keys[key] = StoredKey(str(owner), expires_at)\n",
            "            old = self.keys.get(key)\n"
            "            until = expires_at if old is None else old.expires_at\n"
            "            self.keys[key] = StoredKey(str(owner), until)\n",
        ),
    ),
    mutant(
        "a failed takeover deletes the reservation",
        modelled("hand-kept"),
        (ATTEMPT, "    if previous is None or left <= 0:\n", "    if True:\n"),
    ),
    mutant(
        "a failed takeover gives back where nobody has answered",
        modelled("hand-kept"),
        (
            ATTEMPT,
            _GIVEN_BACK,
            "    channel.post(release(terms.keys, owner, 0, fates=fates))\n",
        ),
    ),
    mutant(
        "a failed takeover gives back only what was counted",
        modelled("hand-kept"),
        (ATTEMPT, "    there = sorted(done or ())\n", "    there = sorted(done or ())[:1]\n"),
    ),
    mutant(
        "a mark is deleted with the lock",
        modelled("hand-twins"),
        (NODE, "                if fates:\n", "                if False:\n"),
    ),
    mutant(
        "a hand back takes the lock from whoever has it",
        modelled("hand-back"),
        (
            NODE,
            "            if held_by == owner:\n                value:",
            "            if held_by == owner or (fates and held_by):\n                value:",
        ),
    ),
    mutant(
        "a hand back is set for long at once",
        modelled("hand-back"),
        (
            LEASE,
            "Fate(min(left, milliseconds(grace)), reservation.owner)",
            "Fate(left, reservation.owner)",
        ),
    ),
    mutant(
        "a reservation is lengthened on nodes that have not answered",
        modelled("hand-publish"),
        (
            RELEASING,
            "extend(given.keys, given.owner, left, 0), done)",
            "extend(given.keys, given.owner, left, 0), type(done)(range(len(transport.names))))",
        ),
    ),
    mutant(
        "what a minority kept of a used reservation stays",
        modelled("hand-left"),
        (LEASE, "        if left_behind:\n", "        if False:\n"),
    ),
)
