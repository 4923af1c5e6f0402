"""
Pictures drawn from the code, as SVG whose colours follow the page's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Callable

from .goals import draw_goals
from .modes import draw_modes
from .no_run import draw_no_run
from .problems import draw_double_click, draw_late_write, draw_two_bodies
from .rounds import draw_rounds
from .sequence import draw_second_round, draw_slow_node
from .waiting import draw_waiting

__all__ = ["DIAGRAMS"]

#: The pictures of the directive `redlock-diagram`.
DIAGRAMS: dict[str, Callable[[], str]] = {
    "rounds": draw_rounds,
    "slow-node": draw_slow_node,
    "second-round": draw_second_round,
    "modes": draw_modes,
    "goals": draw_goals,
    "waiting": draw_waiting,
    "no-run": draw_no_run,
    "two-bodies": draw_two_bodies,
    "late-write": draw_late_write,
    "double-click": draw_double_click,
}
