"""The README is short."""

from __future__ import annotations

from pathlib import Path

README = (Path(__file__).parents[3] / "README.md").read_text()
LONGEST = 180


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LONGEST
