"""
Words in which faults are written down.
"""

from __future__ import annotations

from evidence.planted.places import Edit
from evidence.planted.planting import Fault


def modelled(setting: str, limit: int = 400_000) -> tuple[str, ...]:
    """Have a setting of the models see the fault."""
    return ("evidence.models", setting, "--limit", str(limit))


def simulated(profile: str, seeds: str) -> tuple[str, ...]:
    """Have some histories of the simulation see it."""
    return ("evidence.simulation", "--profile", profile, "--seeds", seeds, "--no-shrink")


def tested(test: str) -> tuple[str, ...]:
    """Have a test see it, wherever that is; `FILE::TEST` where several have the name."""
    return ("pytest", test)


def fault(name: str, killer: tuple[str, ...], *edits: tuple[str, str, str]) -> Fault:
    """Write down a fault by its edits: where, what is there, and what it becomes."""
    return Fault(name=name, killer=killer, edits=tuple(Edit(*edit) for edit in edits))
