"""
Faults in the arming: a node that forgot a lock is taken for a new one.
"""

from __future__ import annotations

from evidence.planted.writing import fault, tested

FORGOTTEN = tested("test_a_majority_that_forgot_a_lease_is_not_armed")

ARMING_FAULTS = (
    fault(
        "nodes are armed although some could not be asked",
        FORGOTTEN,
        ("core/node_admin.py::_why_not_new", "if silent:", "if False:"),
    ),
    fault(
        "nodes are armed although others are in use",
        FORGOTTEN,
        (
            "core/node_admin.py::_why_not_new",
            'if any(answer.state not in ("missing", "failed") for answer in results):',
            "if False:",
        ),
    ),
    fault(
        "a node that restarted since it was looked at is armed",
        tested("test_a_node_that_restarts_between_the_look_and_the_arming_is_not_armed"),
        (
            "transport/redis/nodes.py::ServerSession.open",
            "if self._connection is None:",
            "if True:",
        ),
    ),
)
