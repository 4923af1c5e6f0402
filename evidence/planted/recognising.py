"""
Faults in how a node recognises that it may have lost keys, and that it has not.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled, tested

SAME_PROCESS = "return record.run == self.run and not self.promoted_from"
UNMOVED = "not_before = self.guard.not_before"

RECOGNITION = (
    fault(
        "a new backlog is a restart",
        modelled("identity"),
        ("protocol/node_model.py::Identity.has_lost_nothing_since", SAME_PROCESS, "return False"),
    ),
    fault(
        "a promotion is a new backlog",
        modelled("identity"),
        (
            "protocol/node_model.py::Identity.has_lost_nothing_since",
            SAME_PROCESS,
            "return record.run == self.run",
        ),
    ),
    fault(
        "a promotion of one that had the recorded id is a new backlog",
        modelled("identity"),
        (
            "protocol/node_model.py::Identity.has_lost_nothing_since",
            SAME_PROCESS,
            "return record.run == self.run and self.promoted_from in ('', record.replication)",
        ),
    ),
    fault(
        "a restart is a new backlog",
        modelled("identity"),
        (
            "protocol/node_model.py::Identity.has_lost_nothing_since",
            SAME_PROCESS,
            "return not self.promoted_from",
        ),
    ),
    fault(
        "a replica votes",
        modelled("identity"),
        (
            "protocol/node_model.py::Identity.has_lost_nothing_since",
            "if not self.is_master:",
            "if False:",
        ),
    ),
    fault(
        "a new backlog ends a quarantine",
        modelled("identity"),
        (
            "protocol/node_model.py::ModelNode._quarantined",
            UNMOVED,
            f"{UNMOVED} * (self.guard.replication == self.identity.replication)",
        ),
    ),
    fault(
        "the script takes a new backlog for a restart",
        tested("test_a_node_that_has_lost_nothing_votes"),
        (
            "protocol/lua/identity.lua::identified",
            "return is_same and followed_none and not_before or nil, run",
            "return nil, run",
        ),
    ),
    fault(
        "the script takes a promotion for a new backlog",
        tested("test_a_process_that_was_promoted_is_quarantined"),
        (
            "protocol/lua/identity.lua::identified",
            "return is_same and followed_none and not_before or nil, run",
            "return is_same and not_before or nil, run",
        ),
    ),
    fault(
        "the script takes a restart for a new backlog",
        tested("test_nodes_that_may_have_forgotten_a_lease_do_not_grant_it_again"),
        (
            "protocol/lua/identity.lua::identified",
            "not_before and string.sub(record, 1, 40) == run",
            "not_before",
        ),
    ),
    fault(
        "the script lets a replica vote",
        tested("test_a_replica_that_takes_writes_does_not_vote"),
        (
            "protocol/lua/identity.lua::identified",
            "string.find(replication, 'role:master', 1, true)",
            "true",
        ),
    ),
    fault(
        "the script lets a new backlog end a quarantine",
        tested("test_a_quarantine_lasts_on_when_the_id_is_new_without_a_loss"),
        (
            "protocol/lua/guard.lua::quarantined",
            "not_before <= latest + 600000000 and not_before or latest",
            "now or latest",
        ),
    ),
)
