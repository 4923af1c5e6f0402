"""
One setting, explored.
"""

from __future__ import annotations

import gc
import pkgutil

from evidence.models import stepper
from evidence.models.configs import ALL
from evidence.models.explorer import Outcome, explore


def examine(name: str, limit: int) -> Outcome:
    """Explore one setting, to the end or until `limit` states are known."""
    setting = ALL[name]
    # States are tuples and make no cycles; there is nothing to collect.
    gc.disable()
    try:
        with stepper.prepared():
            outcome = explore(pkgutil.resolve_name(setting.model)(setting), name, limit)
    finally:
        gc.enable()
    if not outcome.violation:
        outcome.missing = sorted(setting.expects - set(outcome.reached))
    return outcome
