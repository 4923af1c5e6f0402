"""
What must hold between contenders in every state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from celery_redlock.core.attempt import Terms
from celery_redlock.protocol.timing import CANDIDATE_AHEAD_US
from tests.models import shipped
from tests.models.explorer import Label, ViolationError
from tests.models.setting import Setting
from tests.models.shipped import MOMENT, TICK
from tests.models.state import NAMES, Part, Tables


@dataclass(slots=True)
class Invariants:
    """Looks at states of one setting."""

    _setting: Setting
    _tables: Tables
    _terms: list[Terms]
    _trust: dict[tuple[int, int], bool] = field(default_factory=dict)

    def check(self, globe: int, parts: tuple[int, ...], index: int, label: Label) -> None:
        """Raise `ViolationError` if what a contender has become breaks an invariant."""
        part: Part = self._tables.parts.things[parts[index]]
        if self._setting.split:
            ends = [self._tables.parts.things[number].scalars for number in parts]
            if all(end == "CONTENDED" for end in ends):
                raise ViolationError(label, "every contender gives way to another, nobody works")
        if part.held is None or part.stands != "holds":
            return
        contenders = self._setting.contenders
        token = part.held.token
        if not part.extended and token <= part.floor:
            raise ViolationError(
                label, f"token {token} is not larger than {part.floor}, granted before it asked"
            )
        time = self._tables.globes.things[globe].time
        if token > (time + 9) * 1000 + CANDIDATE_AHEAD_US:
            raise ViolationError(label, f"token {token} is far ahead of every node's clock")
        for other, number in enumerate(parts):
            rival: Part = self._tables.parts.things[number]
            if other == index or rival.held is None:
                continue
            if not set(contenders[index].keys) & set(contenders[other].keys):
                continue
            if rival.held.token == token:
                raise ViolationError(label, f"{NAMES[index]} and {NAMES[other]} share a token")
            if (
                self._setting.timed
                and rival.stands in ("holds", "extends")
                and self._trusted(parts[index], index, time)
                and self._trusted(number, other, time)
            ):
                raise ViolationError(
                    label, f"{NAMES[index]} and {NAMES[other]} both trust their lease"
                )

    def _trusted(self, number: int, index: int, time: int) -> bool:
        found = self._trust.get((number, time))
        if found is None:
            held = self._tables.parts.things[number].held
            found = shipped.is_trusted(held, self._terms[index], time * TICK + MOMENT)
            self._trust[number, time] = found
        return found
