"""
Exchanges between a client and its nodes: played with memory nodes, and drawn as they went.
"""

from __future__ import annotations

from itertools import groupby

from celery_redlock.protocol.commands import Script
from celery_redlock.protocol.rounds import Phase
from celery_redlock.protocol.votes import Acknowledged, Granted, Vote

from .recording import Note, Record
from .svg import Picture

__all__ = ["draw_second_round", "draw_slow_node"]

WIDTH = 780
CLIENT = 96.0
FIRST = 250.0
ROW = 30.0


def draw_slow_node() -> str:
    """Draw how a lock is acquired and released while one of five nodes is stopped."""
    record = Record([0] * 5, now=41)
    record.nodes[2].pause()
    lease = record.client.acquire("report", ttl=30)
    record.time.sleep(2)
    lease.release()
    record.time.sleep(8)
    record.nodes[2].resume()
    return _Drawing(record).draw("Acquiring a lock while one of five nodes is stopped")


def draw_second_round() -> str:
    """Draw how the fencing token is found where the nodes' counters differ."""
    record = Record([40, 42, 41], now=12)
    record.count_from("report")
    record.client.acquire("report", ttl=30)
    return _Drawing(record).draw("The second round, where counters differ")


class _Drawing:
    """Draws a record from top to bottom."""

    def __init__(self, record: Record) -> None:
        self._record = record
        step = (WIDTH - FIRST - 60) / (len(record) - 1)
        self._nodes = [FIRST + n * step for n in range(len(record))]
        self._phases = iter(record.phases())
        self._picture = Picture("", "", WIDTH)
        self._y = 20.0

    def draw(self, title: str) -> str:
        self._names()
        before = 0.0
        for (at, kind, late), notes in groupby(
            self._record.notes, key=lambda note: (note.at, note.kind, note.late)
        ):
            self._pass_time(at - before, late=late)
            before = at
            if late:
                self._wake(*notes)
            else:
                self._exchange(kind, list(notes))
        # Lifelines lie under everything else, but their length is known only now.
        whole = Picture(title, _description(self._record), WIDTH)
        for x in (CLIENT, *self._nodes):
            whole.line(x, 34, x, self._y + ROW, "life")
        whole.draw_over(self._picture)
        return str(whole)

    def _names(self) -> None:
        self._picture.pill(CLIENT, self._y, "client")
        for number, x in enumerate(self._nodes, 1):
            self._picture.pill(x, self._y, f"node {number}")

    def _pass_time(self, seconds: float, *, late: bool) -> None:
        if seconds <= 0:
            return
        self._y += ROW
        if late:
            self._y += ROW / 2
            self._picture.label(CLIENT + 12, self._y, f"{seconds:g} s later", "quiet")
            self._picture.line(CLIENT, self._y, self._nodes[-1], self._y, "faint")
        else:
            self._picture.box(CLIENT - 6, self._y, 12, ROW * 1.4, "good", radius=3)
            self._picture.label(
                CLIENT + 16, self._y + ROW, f"holds the lock, {seconds:g} s", "quiet"
            )
            self._y += ROW * 1.2

    def _exchange(self, kind: Script, notes: list[Note]) -> None:
        self._y += ROW * 1.3
        self._picture.line(CLIENT, self._y, self._nodes[-1], self._y)
        for x in self._nodes:
            self._picture.head(x, self._y, pointing_left=False)
        self._picture.label(CLIENT + 12, self._y, kind.value)
        for note in notes:
            if note.vote is None:
                self._picture.pill(self._nodes[note.node], self._y + ROW, "no reply", "bad")
        if kind in (Script.ACQUIRE, Script.RAISE):
            self._count([note for note in notes if note.vote is not None])
            return
        self._y += ROW
        for note in notes:
            if note.vote is not None:
                self._picture.pill(self._nodes[note.node], self._y, _shown(note.vote), "good")

    def _count(self, notes: list[Note]) -> None:
        """Draw replies one by one, until the round is decided and after."""
        for note in notes:
            phase = next(self._phases)
            self._y += ROW
            x = self._nodes[note.node]
            quiet = "faint" if phase is None else ""
            shown = _shown(note.vote) + (", not waited for" if phase is None else "")
            self._picture.line(x, self._y, CLIENT, self._y, f"dashed {quiet}", arrow=True)
            self._picture.label(x - 12, self._y, shown, quiet, anchor="end")
            if phase is Phase.GRANTED:
                self._decide(f"GRANTED, token {self._record.token}", "good")
            elif phase is not None and phase not in self._record.waiting_in:
                self._decide(phase.name, "bad")
            elif phase is Phase.RAISING and note.kind is Script.ACQUIRE:
                self._decide(f"RAISING to {self._record.token}", "wait")

    def _decide(self, text: str, kind: str) -> None:
        self._y += ROW * 0.75
        self._picture.pill(CLIENT, self._y, text, kind)

    def _wake(self, note: Note) -> None:
        self._y += ROW
        # No client waits for this lock any more; the release behind it undoes it.
        kind = "bad" if note.kind is Script.ACQUIRE else "good"
        text = f"{note.kind.value}: {_shown(note.vote)}"
        self._picture.pill(self._nodes[note.node], self._y, text, kind)


def _shown(vote: Vote | None) -> str:
    if isinstance(vote, Granted):
        return f"granted {vote.high}"
    return "done" if isinstance(vote, Acknowledged) else "not ours"


def _description(record: Record) -> str:
    sentences = []
    for note in record.notes:
        reply = "gives no reply" if note.vote is None else f"replies: {_shown(note.vote)}"
        when = f"{note.at:g} s, when it continues" if note.late else f"{note.at:g} s"
        sentences.append(f"At {when}, node {note.node + 1} receives {note.kind} and {reply}.")
    return " ".join(sentences)
