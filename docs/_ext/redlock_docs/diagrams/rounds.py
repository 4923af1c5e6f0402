"""
The phases of a round, and which may follow which: the table that the code obeys.
"""

from __future__ import annotations

import inspect
import re

from celery_redlock.protocol.rounds import TRANSITIONS, Phase

from .svg import Picture

__all__ = ["draw_rounds"]

WIDTH = 800
BOX = 128.0
HEIGHT = 34.0
ROW = 52.0
COLUMN = 212.0
#: Where the final phases begin, below the one in the middle, so that arrows pass under that.
TOP = 96.0


def draw_rounds() -> str:
    """Draw the table: phases with successors at the left, final ones at the right."""
    last = [phase for phase in Phase if phase not in TRANSITIONS]
    # Those that the most phases lead to come first, so that few arrows cross.
    last.sort(key=lambda phase: -sum(phase in after for after in TRANSITIONS.values()))
    first, *middle = TRANSITIONS
    column = COLUMN * (1 + len(middle))
    places = {phase: (column, TOP + row * ROW) for row, phase in enumerate(last)}
    places[first] = (8.0, TOP + (len(last) - 1) / 2 * ROW)
    places |= {phase: (COLUMN * (1 + n), 46.0) for n, phase in enumerate(middle)}

    picture = Picture("Phases of a round", _told(), WIDTH)
    for phase, after in TRANSITIONS.items():
        for following in sorted(after, key=lambda phase: (phase is Phase.GRANTED, phase.value)):
            x, y = places[phase]
            to_x, to_y = places[following]
            kind = "good" if following is Phase.GRANTED else ""
            picture.curve(x + BOX, y + HEIGHT / 2, to_x, to_y + HEIGHT / 2, kind)
    meanings = _meanings()
    for phase, (x, y) in places.items():
        kind = "good" if phase is Phase.GRANTED else "open" if phase in TRANSITIONS else "bad"
        picture.box(x, y, BOX, HEIGHT, kind)
        picture.text(x + BOX / 2, y + HEIGHT / 2, phase.name, f"strong {kind}")
        if phase in last:
            right = x + BOX + 12
            picture.paragraph(
                right, y + HEIGHT / 2, meanings[phase.name], "quiet", WIDTH - right, anchor="start"
            )
        else:
            above = phase is not first
            away, room = (-22.0, 250.0) if above else (HEIGHT + 24, BOX + 30)
            picture.paragraph(x + BOX / 2, y + away, meanings[phase.name], "quiet", room)
    return str(picture)


def _meanings() -> dict[str, str]:
    """Return the comment beside each phase."""
    source = inspect.getsource(Phase)
    return dict(re.findall(r"^    ([A-Z]+) = auto\(\)  #: (.+)$", source, flags=re.MULTILINE))


def _told() -> str:
    meanings = _meanings()
    said = [
        f"{phase.name} ({meanings[phase.name]}) may become "
        f"{', '.join(sorted(following.name for following in after))}."
        for phase, after in TRANSITIONS.items()
    ]
    return " ".join([*said, "All others are final."])
