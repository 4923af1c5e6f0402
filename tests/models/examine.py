"""
One setting, explored.
"""

from __future__ import annotations

import gc

from tests.models import stepper
from tests.models.bodies import BodySetting
from tests.models.calls import CallSetting
from tests.models.configs import ALL, AnySetting
from tests.models.explorer import Model, Outcome, explore
from tests.models.identifying import Identifying
from tests.models.identities import IdentitySetting
from tests.models.leaders import LeaderSetting
from tests.models.tables import TableSetting
from tests.models.waiters import Waiters, WaiterSetting
from tests.models.world import World


def examine(name: str, limit: int) -> Outcome:
    """Explore one setting, to the end or until `limit` states are known."""
    setting = ALL[name]
    # States are tuples of numbers and make no cycles; there is nothing to collect.
    gc.disable()
    try:
        with stepper.prepared():
            outcome = explore(_model_of(setting), name, limit)
    finally:
        gc.enable()
    if not outcome.violation:
        outcome.missing = sorted(setting.expects - set(outcome.reached))
    return outcome


def _model_of(setting: AnySetting) -> Model:
    if isinstance(setting, WaiterSetting):
        return Waiters(setting)
    if isinstance(setting, IdentitySetting):
        return Identifying(setting)
    if isinstance(setting, TableSetting):
        from tests.models.tabulating import Rules

        return Rules(setting)
    if isinstance(setting, CallSetting):
        from tests.models.calling import Calls

        return Calls(setting)
    if isinstance(setting, LeaderSetting):
        # Loads Celery, which the others have no use for.
        from tests.models.schedule import Schedule

        return Schedule(setting)
    if isinstance(setting, BodySetting):
        from tests.models.striking import Striking

        return Striking(setting)
    return World(setting)
