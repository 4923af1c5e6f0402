"""The run as a picture: who held what, who was frozen, which node was broken, what a guard saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from evidence.chaos.history import Event, Hold
from evidence.chaos.run import Outcome
from evidence.chaos.schedule import CLOCK_FAULTS, NODES, WORKERS

_WIDTH = 1360
_LEFT = 92
_RIGHT = 12
_LANE = 22
_BAR = 14

_FAMILIES = {
    "stop": "process",
    "pause master": "process",
    "kill master": "memory",
    "restart empty": "memory",
    "restart stale": "memory",
    "flush": "memory",
    "wipe majority": "memory",
    "clock back": "clock",
    "majority leaps": "clock",
    "majority races": "clock",
}


class Plot:
    """An SVG picture of part of a run, built lane by lane."""

    def __init__(self, outcome: Outcome, start: float, end: float, *, close: bool) -> None:
        self._outcome = outcome
        self._start = start
        self._end = end
        self._close = close
        self._y = 6.0
        self._parts: list[str] = []
        self._holds = [
            hold for hold in outcome.history.holds if hold.granted < end and hold.end > start
        ]

    def render(self) -> str:
        """Return the picture as an element of a page."""
        self._keys()
        self._workers()
        self._nodes()
        self._guards()
        axis = "".join(self._axis())
        height = self._y + 24
        inside = axis + "".join(self._parts)
        return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img">{inside}</svg>'

    def _keys(self) -> None:
        self._title("who holds each key (colour: the worker)")
        for key in (*self._outcome.plain, *self._outcome.fenced):
            self._lane(key)
            mine = [hold for hold in self._holds if hold.key == key]
            self._bars(mine)
            for overlap in self._outcome.verdict.overlaps:
                if overlap.first.key == key:
                    self._box(overlap.start, overlap.end, "overlap", "two holders", thin=True)
            self._steps(key)
            self._next()

    def _workers(self) -> None:
        self._title("what each worker holds; hatched: frozen; ✕: killed")
        events = self._outcome.history.events
        for slot in range(WORKERS):
            self._lane(f"worker {slot}", f"w{slot}")
            self._bars([hold for hold in self._holds if hold.worker.startswith(f"{slot}.")])
            for pause in self._outcome.history.pauses:
                if pause.worker.startswith(f"{slot}.") and not pause.stall:
                    self._box(pause.start, pause.end, "frozen", f"frozen {pause.worker}")
            for event in events:
                if event["event"] == "killed" and event["worker"].startswith(f"{slot}."):
                    self._mark(event["t"], "✕", "kill", f"killed {event['worker']}")
                elif event["event"] == "lost" and event["worker"].startswith(f"{slot}."):
                    self._mark(event["t"], "◆", "lost", f"loss reported: {event['why']}")
            self._next()

    def _nodes(self) -> None:
        self._title("faults of each node; pale: mended, but it does not vote yet")
        for node in range(NODES):
            self._lane(f"node {node}")
            for kind, begun, mended, serving in self._faults(node):
                family = _FAMILIES.get(kind, "network")
                self._box(begun, serving, f"{family} pale", f"{kind}: votes again")
                self._box(begun, mended, family, kind, text=kind)
            for event in self._outcome.history.events:
                if event["event"] == "fault" and event["point"] and node in event["nodes"]:
                    self._tick(event["t"], "clock", f"{event['kind']} {event['amount']:g}")
            self._next()

    def _guards(self) -> None:
        self._title(
            "tokens at the fencing guard: accepted on the line, refused as tall as the token was "
            "older than the newest seen"
        )
        top, height = self._y, 64.0
        base = top + height
        steps = [
            record
            for records in self._outcome.fenced.values()
            for record in records[1:]
            if self._start <= record.t <= self._end
        ]
        oldest = max((record.highest - record.token for record in steps), default=0)
        scale = (height - 8) / max(oldest, 1)
        self._text(_LEFT - 8, base, "accepted", "label")
        if oldest:
            self._text(_LEFT - 8, top + 12, f"{oldest / 1e6:.1f} s older", "label")
        accepted = [record for record in steps if record.step != "refused"]
        self._parts.append(
            '<path class="accepted" d="'
            + "".join(f"M{self._x(record.t):.1f} {base}v-5" for record in accepted)
            + '"/>'
        )
        for record in steps:
            if record.step == "refused":
                x, y = self._x(record.t), base - (record.highest - record.token) * scale
                told = f"{record.hold}: token {record.token} refused, {record.highest} was seen"
                self._parts.append(
                    f'<g class="refused"><title>{escape(told)}</title>'
                    f'<path d="M{x:.1f} {base}V{y:.1f}"/>'
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/></g>'
                )
        self._y = base + 8

    def _bars(self, holds: Iterable[Hold]) -> None:
        if self._close:
            for hold in holds:
                told = f"{hold.id} of {hold.key}, token {hold.token}"
                text = f"{hold.worker} · {hold.token % 10**8 / 1e6:.3f}"
                self._box(hold.granted, hold.end, f"w{hold.worker.partition('.')[0]}", told, text)
            return
        # Thousands of bars: one path for each colour instead of an element for each.
        paths: dict[str, list[str]] = {}
        for hold in holds:
            x, to = self._x(hold.granted), self._x(hold.end)
            piece = f"M{x:.1f} {self._y + _LANE / 2:.0f}h{max(to - x, 0.6):.1f}"
            paths.setdefault(hold.worker.partition(".")[0], []).append(piece)
        for slot, pieces in paths.items():
            self._parts.append(f'<path class="bars s{slot}" d="{"".join(pieces)}"/>')

    def _steps(self, key: str) -> None:
        if key in self._outcome.fenced:
            for record in self._outcome.fenced[key]:
                if record.step == "refused":
                    self._mark(record.t, "✕", "kill", f"refused: token {record.token}")
                elif record.step == "write" and self._close and record.hold:
                    self._mark(record.t, "▾", "good", f"{record.hold} wrote {record.value}")
            return
        stale = {
            each.record.latest: each
            for each in self._outcome.verdict.plain_stale
            if each.key == key
        }
        for record in self._outcome.plain[key]:
            if record.step == "write" and record.latest in stale:
                told = f"{record.hold} overwrote {stale[record.latest].lost} updates unread"
                self._mark(record.t, "▲", "kill", told)
            elif record.step == "write" and self._close and record.hold:
                self._mark(record.t, "▾", "good", f"{record.hold} wrote {record.value}")

    def _faults(self, node: int) -> Iterator[tuple[str, float, float, float]]:
        begun: Event | None = None
        mended = self._end
        for event in self._outcome.history.events:
            if node not in event.get("nodes", ()) or event.get("kind") in CLOCK_FAULTS:
                continue
            if event["event"] == "fault":
                begun, mended = event, self._end
            elif event["event"] == "mended":
                mended = event["t"]
            elif event["event"] == "serving" and begun is not None:
                yield begun["kind"], begun["t"], mended, event["t"]
                begun = None

    def _axis(self) -> Iterator[str]:
        seconds = self._end - self._start
        step = next(each for each in (0.5, 1, 2, 5, 10, 30, 60, 600) if seconds / each <= 16)
        at = 0.0
        zero = self._outcome.started
        first = -(-(self._start - zero) // step) * step
        while zero + first + at <= self._end:
            x = self._x(zero + first + at)
            if x > _WIDTH - 2 * _RIGHT:
                return
            yield f'<path class="grid" d="M{x:.1f} 0V{self._y:.0f}"/>'
            yield (f'<text class="time" x="{x:.1f}" y="{self._y + 16:.0f}">{first + at:g} s</text>')
            at += step

    def _title(self, text: str) -> None:
        self._y += 12
        self._text(_LEFT, self._y + 2, text, "title")
        self._y += 8

    def _lane(self, label: str, colour: str = "") -> None:
        middle = self._y + _LANE / 2
        self._parts.append(f'<path class="lane" d="M{_LEFT} {middle}H{_WIDTH - _RIGHT}"/>')
        if colour:
            self._parts.append(
                f'<rect class="{colour}" x="2" y="{middle - 5}" width="10" height="10" rx="2"/>'
            )
        self._text(_LEFT - 8, middle + 4, label, "label")

    def _next(self) -> None:
        self._y += _LANE

    def _box(
        self,
        start: float,
        end: float,
        kind: str,
        told: str,
        text: str = "",
        *,
        thin: bool = False,
    ) -> None:
        if end < self._start or start > self._end:
            return
        x, to = self._x(start), self._x(end)
        height = 3 if thin else _BAR
        y = self._y + (0 if thin else (_LANE - _BAR) / 2)
        self._parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(to - x, 1):.1f}" '
            f'height="{height}" rx="2"><title>{escape(told)}</title></rect>'
        )
        if text and to - x > 6.2 * len(text):
            self._text(x + 4, y + 10.5, text, "inside")

    def _mark(self, t: float, sign: str, kind: str, told: str) -> None:
        if self._start <= t <= self._end:
            self._parts.append(
                f'<text class="mark {kind}" x="{self._x(t):.1f}" y="{self._y + _LANE / 2 + 4:.1f}">'
                f"<title>{escape(told)}</title>{sign}</text>"
            )

    def _tick(self, t: float, kind: str, told: str) -> None:
        if self._start <= t <= self._end:
            self._parts.append(
                f'<rect class="{kind}" x="{self._x(t):.1f}" y="{self._y + 1}" width="2" '
                f'height="5"><title>{escape(told)}</title></rect>'
            )

    def _text(self, x: float, y: float, text: str, kind: str) -> None:
        self._parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>')

    def _x(self, t: float) -> float:
        part = (min(max(t, self._start), self._end) - self._start) / (self._end - self._start)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)
