"""Each line of options on the page is one of a task that a worker would start with."""

from __future__ import annotations

import re
from typing import Any

from tests.docs.blocks import DOCS

__all__: list[str] = []

#: The code of a row that consists of options.
OPTIONS = re.compile(r"^\| .*? \| `(lock_\w+=.+?)` \| ", re.MULTILINE)


def after(_text: str, names: dict[str, Any]) -> None:
    """Declare a task with the options of each row."""
    rows = OPTIONS.findall((DOCS / "how-to" / "recipes.md").read_text())
    assert len(rows) > 20
    for number, options in enumerate(rows):
        declared = dict(names)
        exec(
            f"@app.task(base=RedlockTask, name='recipe {number}', {options})\n"
            "def job(account_id, source, target, tenant): ...",
            declared,
        )
        assert declared["job"].redlock_plan.options, options
