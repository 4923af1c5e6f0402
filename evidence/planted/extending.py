"""
Faults in the extension of a lease: it lasts longer than its nodes keep it, or is taken from others.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled, tested

EXTENSION = (
    fault(
        "an extension counts from the answer",
        modelled("trust-extend"),
        (
            "protocol/rounds.py::ExtendRound.__init__",
            "self.valid_until = max(valid_until, sent_at + ttl - drift(ttl, drift_factor))",
            "self.valid_until = ttl - drift(ttl, drift_factor)",
        ),
        (
            "protocol/rounds.py::ExtendRound.vote",
            "if self._extended >= self.needed:",
            "if self._extended >= self.needed:\n    self.valid_until += now",
        ),
    ),
    fault(
        "one node extends",
        modelled("trust-extend"),
        (
            "protocol/rounds.py::ExtendRound.vote",
            "if self._extended >= self.needed:",
            "if self._extended:",
        ),
    ),
    fault(
        "an extension is acknowledged whoever has the key",
        modelled("trust-extend"),
        (
            "protocol/node_model.py::ModelNode._extend",
            "if all(held_by == owner for _, held_by in owners):\n            return ACK",
            "if True:\n    return ACK",
        ),
    ),
    fault(
        "an extension shortens",
        modelled("trust-shorter"),
        ("protocol/node_model.py::ModelNode._extend", "max(stored.expires_at, until)", "until"),
    ),
    fault(
        "nodes do not extend",
        modelled("trust-extend"),
        (
            "protocol/node_model.py::ModelNode._extend",
            "max(stored.expires_at, until)",
            "stored.expires_at",
        ),
    ),
    fault(
        "late extensions count",
        modelled("trust-extend"),
        (
            "protocol/rounds.py::ExtendRound.vote",
            "Phase.GRANTED if now < self._old_valid_until else Phase.LATE",
            "Phase.GRANTED",
        ),
        ("core/holding.py::Holding._apply_grant", "or self.transport.now() >= old_valid_until", ""),
    ),
    fault(
        "an extension is taken over, and heals, after the deadline",
        modelled("trust-heal"),
        ("core/holding.py::Holding._apply_grant", "or self.transport.now() >= old_valid_until", ""),
    ),
    fault(
        "leases that are extended together get each other's votes",
        tested("test_of_leases_that_are_extended_together_only_the_lost_one_is_lost"),
        (
            "protocol/rounds.py::BatchRound.vote",
            "zip(self.rounds, vote.votes, strict=True)",
            "zip(self.rounds, (*vote.votes[1:], *vote.votes[:1]), strict=True)",
        ),
    ),
    fault(
        "the script takes the first lease's keys for every lease",
        tested("test_a_key_of_another_type_spoils_no_lease_that_is_extended_with_it"),
        (
            "protocol/lua/extend.lua",
            "votes[#votes + 1], first = vote, last + 1",
            "votes[#votes + 1] = vote",
        ),
    ),
    fault(
        "a counter that a full node cannot raise spoils the extension of other leases",
        tested("test_an_extension_lengthens_what_stands_behind_a_counter_that_cannot_be_raised"),
        ("protocol/lua/extend.lua", "pcall('SET', counter", "call('SET', counter"),
    ),
    fault(
        "a heal counts for the extension",
        modelled("trust-missing"),
        (
            "protocol/rounds.py::ExtendRound.vote",
            "if type(vote) is Acknowledged:\n            self._extended += 1",
            "if type(vote) is Acknowledged or (type(vote) is NotHeld and vote.missing):\n"
            "    self._extended += 1",
        ),
    ),
    fault(
        "a heal takes keys from others",
        modelled("trust-heal"),
        (
            "protocol/node_model.py::ModelNode._heal",
            "if any(held_by not in (owner, None) for _, held_by in owners):\n"
            "            return FOREIGN\n"
            "        for key, held_by in owners:\n"
            "            if held_by is None:",
            "for key, held_by in owners:\n    if held_by != owner:",
        ),
    ),
)
