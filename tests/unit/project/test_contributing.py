"""What only `make test-full` shows is named in CONTRIBUTING.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
TABLE = PAGE.partition("## What only `make test-full` shows")[2].partition("\n## ")[0]
ROWS = "\n".join(re.findall(r"^\|.*", TABLE, re.MULTILINE))
NAMED = {ROOT / "tests" / path for path in re.findall(r"`([\w/]+(?:\.py)?)`", ROWS)}
FULL = re.compile(
    r"^(@pytest|pytestmark) ?[=.].*mark\.(full|duration)|marks=pytest\.mark\.full", re.MULTILINE
)
MARKED = {path for path in (ROOT / "tests").rglob("test_*.py") if FULL.search(path.read_text())}


def test_what_is_left_out_of_make_test_is_named() -> None:
    assert [path for path in MARKED if not NAMED & {path, *path.parents}] == []


def test_what_is_named_exists_and_is_left_out() -> None:
    there = {path for path in NAMED if any(path in (one, *one.parents) for one in MARKED)}
    assert NAMED - there == set()
