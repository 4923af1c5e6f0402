"""
Faults in the extension of a lease: it lasts longer than its nodes keep it, or is taken from others.
"""

from __future__ import annotations

from tests.mutants.writing import EXTEND_LUA, LEASE, NODE, ROUNDS, modelled, mutant, tested

EXTENSION = (
    mutant(
        "an extension counts from the answer",
        modelled("trust-extend"),
        (
            ROUNDS,
            "self.valid_until = max(valid_until, sent_at + ttl - drift(ttl, drift_factor))",
            "self.valid_until = ttl - drift(ttl, drift_factor)",
        ),
        (
            ROUNDS,
            "            if self._extended >= self.needed:\n",
            "            if self._extended >= self.needed:\n"
            "                self.valid_until += now\n",
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
            "        if all(held_by == owner for _, held_by in owners):\n            return ACK",
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
        (ROUNDS, "Phase.GRANTED if now < self._old_valid_until else Phase.LATE", "Phase.GRANTED"),
        (LEASE, " or self._transport.now() >= old_valid_until", ""),
    ),
    mutant(
        "an extension is taken over, and heals, after the deadline",
        modelled("trust-heal"),
        (LEASE, " or self._transport.now() >= old_valid_until", ""),
    ),
    mutant(
        "leases that are extended together get each other's votes",
        tested(
            "test_extending.py",
            "test_of_leases_that_are_extended_together_only_the_lost_one_is_lost",
        ),
        (
            ROUNDS,
            "zip(self.rounds, vote.votes, strict=True)",
            "zip(self.rounds, (*vote.votes[1:], *vote.votes[:1]), strict=True)",
        ),
    ),
    mutant(
        "the script takes the first lease's keys for every lease",
        tested(
            "test_extending.py",
            "test_a_key_of_another_type_spoils_no_lease_that_is_extended_with_it",
        ),
        (EXTEND_LUA, "votes[#votes + 1], first = vote, last + 1", "votes[#votes + 1] = vote"),
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
            """        if any(held_by not in (owner, None) for _, held_by in owners):
            return FOREIGN
        for key, held_by in owners:
            if held_by is None:""",
            """        for key, held_by in owners:
            if held_by != owner:""",
        ),
    ),
)
