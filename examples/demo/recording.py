"""
The demo as a moving picture: the pictures of its terminal in one SVG file.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Self
from xml.sax.saxutils import escape

from rich.console import Console
from rich.segment import Segment

from examples.demo.live_view import WIDEST, LiveView
from examples.demo.story import Demo

#: Lines of the terminal, and how many of them are above the timeline.
HEIGHT, ABOVE = 22, 10
#: The size of a character, and the space around all of them.
WIDTH_OF_ONE, HEIGHT_OF_ONE, EDGE = 8.4, 19, 16
#: Seconds between two pictures, and before the table.
EVERY, TO_READ = 0.8, 3

HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}">
<title>A recording of make demo: five lock nodes, a worker, and four faults</title>
<style>
text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre;
  fill: #d1d7e0 }}
.bold {{ font-weight: bold }} .dim {{ fill: #8b949e }} .red {{ fill: #ff7b72 }}
.green {{ fill: #57d364 }} .blue {{ fill: #79c0ff }} .yellow {{ fill: #e3b341 }}
.magenta {{ fill: #d2a8ff }} .cyan {{ fill: #56d4dd }}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
"""


class Recording(LiveView):
    """Keeps a picture of the terminal at intervals."""

    def __init__(self) -> None:
        super().__init__(Console(file=StringIO(), width=WIDEST, height=HEIGHT, highlight=False))
        self._pictures: list[tuple[float, list[str]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def refresh(self, demo: Demo) -> None:
        """Keep the present state, in the place of one that was kept a moment ago."""
        lines = list(map(_text, self._console.render_lines(self.picture(demo))))
        if len(self._pictures) > 1 and demo.elapsed < self._pictures[-2][0] + EVERY:
            self._pictures.pop()
        self._pictures.append((demo.elapsed, lines))

    def write(self, path: str, text: str) -> None:
        """Put a text in the place of the timeline, and write the file."""
        at, lines = self._pictures[-1]
        table = [_text([Segment(line)]) for line in text.splitlines()]
        self._pictures.append((at + TO_READ, [*lines[:ABOVE], "", *table]))
        Path(path).write_text(self._drawn())

    def _drawn(self) -> str:
        """Return the file: each text in its line for the time that it was there."""
        first = self._pictures[0][0]
        size = {"width": WIDEST * WIDTH_OF_ONE + 2 * EDGE, "height": HEIGHT * HEIGHT_OF_ONE + EDGE}
        drawn = [HEAD.format(**size)]
        for number in range(HEIGHT):
            y = round(EDGE + (number + 0.75) * HEIGHT_OF_ONE)
            shown, since = "", 0.0
            for at, lines in [*self._pictures, (None, [])]:
                text = lines[number] if number < len(lines) else ""
                if at is not None and text == shown:
                    continue
                until = None if at is None else at - first
                if shown:
                    drawn.append(_line(y, shown, since, until))
                shown, since = text, until or 0.0
        return "".join([*drawn, "</svg>\n"])


def _line(y: int, text: str, since: float, until: float | None) -> str:
    """Show a text for its time alone. Where nothing moves, the last one of each line is seen."""
    if until is None:
        hidden, change, begin, end = "", "hidden", 0.0, since
    else:
        hidden, change, begin, end = ' visibility="hidden"', "visible", since, until
    return (
        f'<text y="{y}"{hidden}><set attributeName="visibility" to="{change}" '
        f'begin="{begin:.1f}s" end="{end:.1f}s"/>{text}</text>\n'
    )


def _text(segments: list[Segment]) -> str:
    """Return a line of the terminal as parts of a text, each at its place."""
    parts, column = [], 0
    for text, style, _ in segments:
        if text.strip():
            x = EDGE + (column + len(text) - len(text.lstrip())) * WIDTH_OF_ONE
            named = f' class="{style}"' if style else ""
            parts.append(f'<tspan x="{x:.0f}"{named}>{escape(text.strip())}</tspan>')
        column += len(text)
    return "".join(parts)
