"""
The questions that lead from a job that does not run to the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from .svg import SMALL, Picture, width_of

__all__ = ["draw_no_run"]

WIDTH = 780
MIDDLE = 190.0
QUESTION = 300.0
ANSWERS = 400.0
HEIGHT = 32.0
TOP = 32.0
STEP = 74.0
BETWEEN = 34.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    A question of the page.

    Attributes:
        text: the question.
        onward: the answer that leads to the next question.
        answers: answers that end the search, each with what to do.
    """

    text: str
    onward: str
    answers: tuple[tuple[str, str], ...]


QUESTIONS = (
    Question(
        text="Was it due, and was it sent?",
        onward="sent",
        answers=(("not due", "the schedule, a clock"), ("not sent", "an earlier call has the key")),
    ),
    Question(
        text="Where is its message?",
        onward="with a worker, scheduled or active",
        answers=(("in the queue", "consume it"), ("nowhere", "skipped, or it gave up")),
    ),
    Question(
        text="Is its lock held?",
        onward="held",
        answers=(("free", "the nodes, or the next try"), ("slots", "a limit or a rate")),
    ),
    Question(
        text="By what?",
        onward="a body, state running",
        answers=(("queued", "gone? release --revoke"), ("finished", "wait until it expires")),
    ),
    Question(
        text="Is the holder alive?",
        onward="",
        answers=(("it runs", "wait, or look at its log"), ("it has gone", "it expires; release")),
    ),
)


def draw_no_run() -> str:
    """Draw the questions below one another, and to the right of each the answers that end it."""
    picture = Picture("Questions about a job that does not run", _words(), WIDTH)
    for number, question in enumerate(QUESTIONS):
        y = TOP + number * STEP
        picture.box(MIDDLE - QUESTION / 2, y - HEIGHT / 2, QUESTION, HEIGHT, "wait")
        picture.text(MIDDLE, y, question.text)
        if question.onward:
            picture.line(MIDDLE, y + HEIGHT / 2, MIDDLE, y + STEP - HEIGHT / 2)
            picture.label(MIDDLE + 10, y + STEP / 2 + 10, question.onward)
        for row, (answer, reason) in enumerate(question.answers):
            end = y + (row - 0.5) * BETWEEN
            picture.curve(MIDDLE + QUESTION / 2, y, ANSWERS, end)
            picture.text(ANSWERS + 8, end, answer, "small", anchor="start")
            width = width_of(reason, SMALL) + 16
            picture.pill(ANSWERS + 100 + width / 2, end, reason, "good")
    return str(picture)


def _words() -> str:
    return " ".join(
        " ".join(
            (
                question.text,
                *(f"{answer}: {reason}." for answer, reason in question.answers),
                f"{question.onward}: the next question." if question.onward else "",
            )
        )
        for question in QUESTIONS
    )
