"""
Faults in how a node recognises that it may have lost keys, and that it has not.
"""

from __future__ import annotations

from tests.mutants.writing import GUARD_LUA, IDENTITY_LUA, NODE, modelled, mutant, tested

SAME_PROCESS = "return record.run == self.run and not self.promoted_from"
UNMOVED = "not_before = self.guard.not_before"

RECOGNITION = (
    mutant(
        "a new backlog is a restart",
        modelled("identity"),
        (NODE, SAME_PROCESS, "return False"),
    ),
    mutant(
        "a promotion is a new backlog",
        modelled("identity"),
        (NODE, SAME_PROCESS, "return record.run == self.run"),
    ),
    mutant(
        "a promotion of one that had the recorded id is a new backlog",
        modelled("identity"),
        (
            NODE,
            SAME_PROCESS,
            "return record.run == self.run and self.promoted_from in ('', record.replication)",
        ),
    ),
    mutant(
        "a restart is a new backlog",
        modelled("identity"),
        (NODE, SAME_PROCESS, "return not self.promoted_from"),
    ),
    mutant(
        "a replica votes",
        modelled("identity"),
        (NODE, "if not self.is_master:", "if False:"),
    ),
    mutant(
        "a new backlog ends a quarantine",
        modelled("identity"),
        (NODE, UNMOVED, f"{UNMOVED} * (self.guard.replication == self.identity.replication)"),
    ),
    mutant(
        "the script takes a new backlog for a restart",
        tested("test_replication_id.py", "test_a_node_that_has_lost_nothing_votes"),
        (
            IDENTITY_LUA,
            "return is_same and followed_none and not_before or nil, run",
            "return nil, run",
        ),
    ),
    mutant(
        "the script takes a promotion for a new backlog",
        tested("test_replication_id.py", "test_a_process_that_was_promoted_is_quarantined"),
        (
            IDENTITY_LUA,
            "return is_same and followed_none and not_before or nil, run",
            "return is_same and not_before or nil, run",
        ),
    ),
    mutant(
        "the script takes a restart for a new backlog",
        tested("test_guard.py", "test_nodes_that_may_have_forgotten_a_lease_do_not_grant_it_again"),
        (IDENTITY_LUA, "not_before and string.sub(record, 1, 40) == run", "not_before"),
    ),
    mutant(
        "the script lets a replica vote",
        tested("test_replication_id.py", "test_a_replica_that_takes_writes_does_not_vote"),
        (IDENTITY_LUA, "string.find(replication, 'role:master', 1, true)", "true"),
    ),
    mutant(
        "the script lets a new backlog end a quarantine",
        tested(
            "test_replication_id.py",
            "test_a_quarantine_lasts_on_when_the_id_is_new_without_a_loss",
        ),
        (
            GUARD_LUA,
            "    not_before = not_before or now",
            "    not_before = not_before and now or now",
        ),
    ),
)
