"""The table of pools is true: every row is tested, and the page says the same."""

from __future__ import annotations

import re
from pathlib import Path

from tests.acceptance.matrix import PAGE, ROWS, page


def test_the_page_about_pools_is_what_the_table_says() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.acceptance.matrix`"


def test_every_row_of_the_table_has_a_test() -> None:
    sources = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    joined = re.sub(r"\s*\n\s*", "", sources)

    assert not [event for event in ROWS if f'@row("{event}")' not in joined]
