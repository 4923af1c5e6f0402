"""
When each `lock_mode` takes and releases the key.
"""

from __future__ import annotations

from celery_redlock.tasks.config.option_values import MODES, Mode

from .svg import Picture

__all__ = ["draw_modes"]

WIDTH = 780
LEFT = 214.0
ROW = 44.0
TOP = 46.0
#: Where in the picture the moments of a task's life are.
MOMENTS = {
    "sent": 0.0,
    "body begins": 0.3,
    "body ends": 0.62,
    "result stored": 0.78,
    "window ends": 1.0,
}
HEIGHT = 22.0


def draw_modes() -> str:
    """Draw a bar for each stretch in which a mode has the key."""
    picture = Picture("When each mode takes and releases the key", _description(), WIDTH)
    bottom = TOP + ROW * len(MODES)
    for name in MOMENTS:
        picture.line(_x(name), TOP - 16, _x(name), bottom, "life")
        anchor = "end" if name == "window ends" else "start" if name == "sent" else "middle"
        picture.text(_x(name), TOP - 28, name, "small quiet", anchor=anchor)
    for row, mode in enumerate(MODES.values()):
        y = TOP + row * ROW
        picture.text(LEFT - 16, y + ROW / 2, mode.name, "small code", anchor="end")
        for start, end, kind, words in _stretches(mode):
            left, width = _x(start), _x(end) - _x(start)
            picture.box(left, y + (ROW - HEIGHT) / 2, width, HEIGHT, kind, radius=4)
            picture.text(left + width / 2, y + ROW / 2, words, f"small {kind}")
    return str(picture)


def _stretches(mode: Mode) -> list[tuple[str, str, str, str]]:
    """Return when the key is taken, and how, in words."""
    found = []
    if mode.at_publish:
        words = "reserved, on a second key" if mode.own_queue_key else "reserved"
        found.append(("sent", "body begins", "wait", words))
    if mode.in_body:
        end = "result stored" if mode.at_publish else "body ends"
        found.append(("body begins", end, "good", "lease and token"))
    if mode.for_window:
        found.append(("result stored", "window ends", "wait", "taken"))
    return found


def _description() -> str:
    return " ".join(
        f"{mode.name}: "
        + ", ".join(
            f"{words} from {start} until {end}" for start, end, _, words in _stretches(mode)
        )
        + "."
        for mode in MODES.values()
    )


def _x(moment: str) -> float:
    return LEFT + MOMENTS[moment] * (WIDTH - LEFT - 8)
