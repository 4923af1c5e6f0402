"""
The problems that a lock is for: each once without and once with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .svg import Picture

__all__ = ["draw_double_click", "draw_late_write", "draw_two_bodies"]

WIDTH = 780
LEFT = 96.0
HALF = 324.0
GAP = 28.0
TOP = 52.0
ROW = 40.0
HEIGHT = 24.0


@dataclass(frozen=True, slots=True)
class _Bar:
    """
    Something that lasts.

    Attributes:
        lane: the lane that it is in.
        start: when it begins; a half of the picture lasts 100.
        end: when it ends.
        words: what it is.
        kind: how it is drawn.
    """

    lane: str
    start: float
    end: float
    words: str
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """
    A picture.

    Attributes:
        title: the problem.
        headings: what is compared.
        before: what happens in the first case.
        bad: how that ends.
        after: what happens in the second case.
        good: how that ends.
    """

    title: str
    headings: tuple[str, str] = ("without a lock", "with celery-redlock")
    before: tuple[_Bar, ...]
    bad: str
    after: tuple[_Bar, ...]
    good: str


TWO_BODIES = _Problem(
    title="Two bodies at once",
    before=(
        _Bar("worker 1", 4, 62, "reads 100, writes 90"),
        _Bar("worker 2", 34, 92, "reads 100, writes 80", "bad"),
    ),
    bad="balance 80: the withdrawal of 10 is lost",
    after=(
        _Bar("worker 1", 4, 48, "reads 100, writes 90", "good"),
        _Bar("worker 2", 10, 50, "waits in its queue", "wait"),
        _Bar("worker 2", 52, 96, "reads 90, writes 70", "good"),
    ),
    good="balance 70: the second began after the first",
)

LATE_WRITE = _Problem(
    title="A stale writer after a pause",
    headings=("a lock alone", "a lock with a fencing token"),
    before=(
        _Bar("worker 1", 4, 26, "reads 100"),
        _Bar("worker 1", 28, 66, "paused, lease ends", "wait"),
        _Bar("worker 1", 68, 98, "writes 90", "bad"),
        _Bar("worker 2", 30, 64, "writes 80"),
    ),
    bad="balance 90: the late write replaced the newer one",
    after=(
        _Bar("worker 1", 4, 26, "token 41", "good"),
        _Bar("worker 1", 28, 66, "paused, lease ends", "wait"),
        _Bar("worker 1", 68, 98, "41 is refused", "bad"),
        _Bar("worker 2", 30, 64, "writes, token 42", "good"),
    ),
    good="balance 80: the database refused 41 after 42",
)

DOUBLE_CLICK = _Problem(
    title="A job that is sent twice",
    before=(
        _Bar("web site", 4, 18, "pay"),
        _Bar("web site", 24, 38, "pay"),
        _Bar("worker", 22, 56, "charges 100"),
        _Bar("worker", 58, 94, "charges 100", "bad"),
    ),
    bad="charged 200: both clicks were sent",
    after=(
        _Bar("web site", 4, 18, "pay", "good"),
        _Bar("web site", 24, 60, "pay: not sent", "wait"),
        _Bar("worker", 22, 60, "charges 100", "good"),
    ),
    good="charged 100: the second call got the first result",
)


def draw_two_bodies() -> str:
    """Draw a lost update."""
    return _draw(TWO_BODIES)


def draw_late_write() -> str:
    """Draw a holder that is paused for longer than its lease."""
    return _draw(LATE_WRITE)


def draw_double_click() -> str:
    """Draw a call that repeats another."""
    return _draw(DOUBLE_CLICK)


def _draw(problem: _Problem) -> str:
    """Draw a lane for each process, once on the left and once on the right."""
    picture = Picture(problem.title, _words(problem), WIDTH)
    lanes = list(dict.fromkeys(bar.lane for bar in problem.before))
    for number, lane in enumerate(lanes):
        picture.text(LEFT - 14, TOP + ROW * (number + 0.5), lane, "small quiet", anchor="end")
    halves = (
        (problem.before, problem.bad, "bad"),
        (problem.after, problem.good, "good"),
    )
    for number, (bars, end, kind) in enumerate(halves):
        left = LEFT + number * (HALF + GAP)
        picture.text(left, TOP - 30, problem.headings[number], "strong", anchor="start")
        for row in range(len(lanes)):
            y = TOP + ROW * (row + 0.5)
            picture.line(left, y, left + HALF, y, "life")
        for bar in bars:
            x, width = left + bar.start * HALF / 100, (bar.end - bar.start) * HALF / 100
            y = TOP + ROW * (lanes.index(bar.lane) + 0.5)
            picture.box(x, y - HEIGHT / 2, width, HEIGHT, bar.kind, radius=4)
            picture.text(x + width / 2, y, bar.words, f"small {bar.kind}".rstrip())
        picture.text(left, TOP + ROW * len(lanes) + 18, end, f"small {kind}", anchor="start")
    return str(picture)


def _words(problem: _Problem) -> str:
    halves = (problem.before, problem.bad), (problem.after, problem.good)
    return " ".join(
        f"{heading}: {', '.join(f'{bar.lane}: {bar.words}' for bar in bars)}. End: {end}."
        for heading, (bars, end) in zip(problem.headings, halves, strict=True)
    )
