"""
One setting, explored.
"""

from __future__ import annotations

import gc

from evidence.models import stepper
from evidence.models.bodies import BodySetting
from evidence.models.bursts import BurstSetting
from evidence.models.calls import CallSetting
from evidence.models.configs import ALL, AnySetting
from evidence.models.explorer import Model, Outcome, explore
from evidence.models.identifying import Identifying
from evidence.models.identities import IdentitySetting
from evidence.models.leaders import LeaderSetting
from evidence.models.pauses import Pauses, PauseSetting
from evidence.models.promoted import Promoted
from evidence.models.promotions import PromotionSetting
from evidence.models.tables import TableSetting
from evidence.models.waiters import Waiters, WaiterSetting
from evidence.models.world import World


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
    if isinstance(setting, PauseSetting):
        return Pauses(setting)
    if isinstance(setting, IdentitySetting):
        return Identifying(setting)
    if isinstance(setting, PromotionSetting):
        return Promoted(setting)
    if isinstance(setting, TableSetting):
        from evidence.models.tabulating import Rules

        return Rules(setting)
    if isinstance(setting, CallSetting):
        from evidence.models.calling import Calls

        return Calls(setting)
    if isinstance(setting, BurstSetting):
        from evidence.models.bursting import Bursts

        return Bursts(setting)
    if isinstance(setting, LeaderSetting):
        # Loads Celery, which the others have no use for.
        from evidence.models.schedule import Schedule

        return Schedule(setting)
    if isinstance(setting, BodySetting):
        from evidence.models.striking import Striking

        return Striking(setting)
    return World(setting)
