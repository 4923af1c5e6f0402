"""
One setting, explored.
"""

from __future__ import annotations

import gc

from tests.models.explorer import Outcome, explore
from tests.models.settings import ALL
from tests.models.world import World


def examine(name: str, limit: int) -> Outcome:
    """Explore one setting, to the end or until `limit` states are known."""
    # States are tuples of numbers and make no cycles; there is nothing to collect.
    gc.disable()
    setting = ALL[name]
    outcome = explore(World(setting), name, limit)
    if not outcome.violation:
        outcome.missing = sorted(setting.expects - set(outcome.reached))
    return outcome
