"""
Messages that wait for a key: played with memory nodes, and drawn as it went.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_redlock import LockContended
from celery_redlock.core import Lease, client_of
from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.keys import wake_channel
from celery_redlock.transport import Listener

from .recording import Record
from .svg import Picture

__all__ = ["draw_waiting"]

WIDTH = 780
ROW = 30.0
HOLDER, NODES, FIRST, SECOND = 96.0, 300.0, 500.0, 690.0
PLACES = {"message 1": HOLDER, "message 2": FIRST, "message 3": SECOND}


@dataclass(frozen=True, slots=True)
class _Step:
    """
    Something that happened.

    Attributes:
        who: the message.
        asks: what its worker sent to the nodes; "" where they wake it.
        reply: what they replied, or how they woke it.
        kind: how it is drawn.
    """

    who: str
    asks: str
    reply: str
    kind: str


def draw_waiting() -> str:
    """Draw how two messages wait for a third one's lock."""
    steps = _play()
    picture = Picture("A release wakes those who wait", _told(steps), WIDTH)
    y = 20.0
    height = y + ROW * (1 + sum(2 if step.asks else 1 for step in steps))
    for x in (*PLACES.values(), NODES):
        picture.line(x, 34, x, height, "life")
    for who, x in PLACES.items():
        picture.pill(x, y, f"worker, {who}")
    picture.pill(NODES, y, "nodes")
    y += ROW
    for step in steps:
        x = PLACES[step.who]
        left, anchor = min(x, NODES) + 12, "start"
        if step.asks:
            picture.line(x, y + ROW / 2, NODES, y + ROW / 2, arrow=True)
            picture.label(left, y + ROW / 2, step.asks, anchor=anchor)
            y += ROW
        picture.line(NODES, y + ROW / 2, x, y + ROW / 2, f"dashed {step.kind}", arrow=True)
        picture.label(left, y + ROW / 2, step.reply, anchor=anchor)
        y += ROW
    return str(picture)


def _play() -> list[_Step]:
    """Let three messages ask for one key, the first release it, and the others be woken."""
    record = Record([0] * 3, now=41)
    client, steps, woken = client_of(record.client), [], []
    channels = [wake_channel(client.key_of("report").stored)]
    listener = Listener(
        client.transport.wake_ups, channels, lambda name, _: woken.append(name), lambda: None
    )

    def ask(who: str, since: int) -> Lease | None:
        waiter = Waiter(who, since, 60_000)
        try:
            lease = client.acquire_for_task(("report",), waiter=waiter, first_waiter=waiter)
        except LockContended:
            steps.append(_Step(who, "acquire", f"held; remembered since {since} ms", ""))
            return None
        steps.append(_Step(who, "acquire", f"granted, token {lease.fencing_token}", "good"))
        return lease

    first = ask("message 1", 1)
    for who, since in (("message 2", 2), ("message 3", 3)):
        ask(who, since)
    if first is not None:
        first.release()
        steps.append(_Step("message 1", "release", "done", "good"))
    listener.close()
    names = list(dict.fromkeys(woken))
    steps += [_Step(name, "", "woken", "good") for name in names]
    for name in names:
        ask(name, int(name.split()[1]))
    return steps


def _told(steps: list[_Step]) -> str:
    return " ".join(
        f"The worker of {step.who} sends {step.asks}; reply: {step.reply}."
        if step.asks
        else f"The nodes wake {step.who}."
        for step in steps
    )
