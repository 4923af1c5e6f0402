"""
Faults in the arming: a node that forgot a lock is taken for a new one.
"""

from __future__ import annotations

from tests.mutants.writing import ARMING, mutant, tested

FORGOTTEN = tested("test_node_admin.py", "test_a_majority_that_forgot_a_lease_is_not_armed")

ARMING_FAULTS = (
    mutant(
        "nodes are armed although some could not be asked",
        FORGOTTEN,
        (ARMING, "    if silent:\n", "    if False:\n"),
    ),
    mutant(
        "nodes are armed although others are in use",
        FORGOTTEN,
        (
            ARMING,
            'if any(answer.state not in ("missing", "failed") for answer in results):',
            "if False:",
        ),
    ),
    mutant(
        "a node that restarted since it was looked at is armed",
        tested(
            "test_node_admin.py",
            "test_a_node_that_restarts_between_the_look_and_the_arming_is_not_armed",
        ),
        (ARMING, "if self._connection is None:", "if True:"),
    ),
)
